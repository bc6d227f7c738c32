"""Damage to the segments of a real training: what is lost is told to the record, and nothing is displaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from delivery_processes import Site, wait_until
from forked_scripts import ForkedScripts
from journal_damages import DAMAGES, TELLS_OF_A_FILE, cut, delete
from written_journal import written_records

from dashboard.commands.events import load_events, notices
from dashboard.commands.export import export_run
from dashboard.commands.open import _fill
from dashboard.ingest.spool import IngestReport, SpoolIngest
from dashboard.runs import resolve_runs
from dashboard.store.duck import DuckStore
from probe.delivery.helper.helper import start_helper
from probe.delivery.helper.ring_taker import take_ring

SCRIPT = Path(__file__).with_name("scripts") / "small_segments.py"
RUN = "delivery"
STEPS = 300


@dataclass(frozen=True)
class Left:
    """What a training has left, and what it had written."""

    spool: Path
    steps: list[int]
    """Those that the script has noted as finished."""
    written: dict[str, dict[int, bytes]]
    """Stream -> number -> record in its segments, by the description of the format."""

    def copied(self, to: Path) -> Path:
        """Copy the spool; returns the writer's folder in it."""
        shutil.copytree(self.spool, to, symlinks=True)
        return writer_in(to)

    def losses(self) -> dict[int, float]:
        """Step -> loss."""
        frames = [msgspec.msgpack.decode(data) for data in self.written["metrics"].values()]
        return {frame["step"]: frame["scalars"]["loss"] for frame in frames}


def writer_in(spool: Path) -> Path:
    (writer,) = (spool / RUN).glob("0-*")
    return writer


def train(forked: ForkedScripts, folder: Path, how: str) -> Left:
    command = [str(SCRIPT), str(folder / "spool"), str(folder / "log"), RUN, str(STEPS), how]
    code, _, said = forked.start(command, folder).finish()
    assert code == (0 if how == "close" else -9), said
    writer = writer_in(folder / "spool")
    written = {stream: written_records(writer, stream) for stream in ("events", "metrics")}
    return Left(folder / "spool", [int(step) for step in (folder / "log").read_text().split()], written)


@pytest.fixture(scope="module")
def finished(forked: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Left:
    left = train(forked, tmp_path_factory.mktemp("finished"), "close")
    assert len(left.written["metrics"]) == len(left.steps) == STEPS
    assert len(left.written["events"]) > 40
    return left


@pytest.fixture(scope="module")
def killed(forked: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return train(forked, tmp_path_factory.mktemp("killed"), "kill")


Accounts = dict[str, tuple[int, int, int, int]]
"""Stream -> (next number, stored, gaps, dropped)."""


def ingested(spool: Path, data: Path) -> tuple[Accounts, dict[int, float], IngestReport]:
    """Read a spool into a new store; returns the accounts, step -> loss, and what the reader says."""
    store = DuckStore(data)
    try:
        report = SpoolIngest(store, spool).run()
        positions = store.positions(RUN)
        accounts = {one.key.stream: (one.next_seq, one.stored, one.gaps, one.dropped) for one in positions}
        shown = store.scalars(RUN, 0, ["loss"], max_points=10**6)
        return accounts, dict(zip(shown["step"].tolist(), shown["mean"].tolist(), strict=True)), report
    finally:
        store.close()


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_a_finished_journal_is_told_to_the_record(
    finished: Left, tmp_path: Path, name: str
) -> None:
    lost = DAMAGES[name](finished.copied(tmp_path / "spool"))
    accounts, losses, report = ingested(tmp_path / "spool", tmp_path / "data")
    for stream, written in finished.written.items():
        gone = lost.get(stream, 0)
        assert accounts[stream] == (len(written), len(written) - gone, gone, 0), stream
    assert report.missing == sum(lost.values())
    assert bool(report.odd_files) == (name in TELLS_OF_A_FILE), report.problems
    # No step is displaced, none is invented.
    assert losses.items() <= finished.losses().items()
    assert len(losses) == STEPS - lost.get("metrics", 0)


@pytest.mark.parametrize(
    "name", ["nothing", "steps cut by 14", "last segment of steps deleted", "events cut by 5"]
)
def test_damage_to_a_killed_journal_is_told_and_the_ring_keeps_its_numbers(
    killed: Left, tmp_path: Path, name: str
) -> None:
    lost = DAMAGES[name](killed.copied(tmp_path / "spool"))
    for folder in ("data", "data again"):
        accounts, losses, _ = ingested(tmp_path / "spool", tmp_path / folder)
        gone = lost.get("metrics", 0)
        assert accounts["metrics"] == (STEPS, STEPS - gone, gone, 0)
        events = len(killed.written["events"])
        assert accounts["events"] == (events, events - lost.get("events", 0), lost.get("events", 0), 0)
        assert sorted(losses) == sorted(set(killed.steps) - lost_steps(killed, gone))
        # The helper takes the ring; what it writes has the numbers that a reader gave.
        assert take_ring(writer_in(tmp_path / "spool"))
        assert not (writer_in(tmp_path / "spool") / "ring").exists()


def lost_steps(left: Left, gone: int) -> set[int]:
    """The steps of the last records of the segments."""
    return set(list(left.losses())[len(left.losses()) - gone :])


def test_account_that_is_gone_is_replaced_by_the_end_of_the_run(finished: Left, tmp_path: Path) -> None:
    writer = finished.copied(tmp_path / "spool")
    gone = cut("metrics", 14)(writer)["metrics"]
    (writer / "account").unlink()
    accounts, _, report = ingested(tmp_path / "spool", tmp_path / "data")
    assert accounts["metrics"] == (STEPS, STEPS - gone, gone, 0)
    assert "missing at the end" in report.problems[0]


def test_foreign_or_damaged_account_is_none(finished: Left, tmp_path: Path) -> None:
    writer = finished.copied(tmp_path / "spool")
    data = bytearray((writer / "account").read_bytes())
    for other in (bytes(len(data)), bytes(data[:100]), b"", bytes(data[:130]) + b"\xff" * (len(data) - 130)):
        (writer / "account").write_bytes(other)
        accounts, _, report = ingested(tmp_path / "spool", tmp_path / f"data {len(list(tmp_path.iterdir()))}")
        assert (accounts["metrics"], report.problems) == ((STEPS, STEPS, 0, 0), ())


def test_steps_without_names_are_shown_and_said(finished: Left, tmp_path: Path) -> None:
    delete("events")(finished.copied(tmp_path / "spool"))
    said: list[str] = []
    target = str(tmp_path / "spool" / RUN)
    export_run(
        target, form="json", output=tmp_path / "run.json", rank=0, theme="dark", statistic="grad_norm",
        track=None, data=tmp_path / "none", notice=said.append,
    )  # fmt: skip
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["series"]["loss"]["step"] == finished.steps
    (gap,) = document["gaps"]
    assert gap["is_partial"] and gap["count"] == STEPS
    sentence = f"{STEPS} steps without the names of their parameters"
    assert any(sentence in text for text in said)
    assert any(f"{len(finished.written['events'])}" in text for text in said)
    opened: list[str] = []
    _fill(tmp_path / "opened", resolve_runs(target), notice=opened.append)
    assert any(sentence in text for text in opened) and any("lacks" in text for text in opened)


def test_events_command_tells_of_both_streams_and_of_odd_files(finished: Left, tmp_path: Path) -> None:
    writer = finished.copied(tmp_path / "spool")
    lost = cut("events", 5)(writer) | cut("metrics", 14)(writer)
    DAMAGES["odd files"](writer)
    found = load_events(str(tmp_path / "spool" / RUN))
    assert (found.unreadable, found.missing_steps) == (lost["events"], lost["metrics"])
    text = "\n".join(notices(found))
    assert "metrics-99999999999999999999.seg" in text
    assert f"lacks its newest records of steps: {lost['metrics']}" in text


@pytest.fixture
def site(tmp_path: Path, forked_dashboard: ForkedScripts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("NANSCOPE_CONNECT", raising=False)  # a helper is to come
    site = Site(tmp_path, forked_dashboard)
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    yield site
    site.close()


@pytest.mark.parametrize("how", ["finished", "killed"])
def test_helper_ships_what_is_missing_at_the_end(
    site: Site, request: pytest.FixtureRequest, how: str
) -> None:
    left: Left = request.getfixturevalue(how)
    writer = left.copied(site.spool)
    lost = cut("metrics", 14)(writer) | cut("events", 5)(writer)
    DAMAGES["odd files"](writer)
    dashboard = site.start_dashboard()
    assert start_helper(site.spool / RUN, None) is None
    wait_until(lambda: site.helper_pid() is not None, "no helper came")
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    store = DuckStore(site.data)
    accounts = {one.key.stream: one for one in store.positions(RUN) if one.key.writer.startswith("0-")}
    (gap,) = store.gaps(RUN)
    store.close()
    assert accounts["metrics"].next_seq == STEPS
    assert accounts["metrics"].gaps == gap.count == lost["metrics"] > 0
    assert accounts["events"].gaps == lost["events"] > 0
    assert all(one.next_seq == one.stored + one.gaps + one.dropped for one in accounts.values())
    assert "metrics-99999999999999999999.seg is passed over" in site.logs()
