"""Models made one after the other are members of one run; those trained at the same time have a run each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_scripts import TORCH, ForkedScripts
from journals import Journal, read_journal
from test_run_command import Both, run_both

from dashboard.ingest.run_removal import run_rows
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange

SCRIPT = Path(__file__).parent / "scripts" / "made_again.py"


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedScripts]:
    with ForkedScripts(*TORCH) as scripts:
        yield scripts


@pytest.fixture(scope="module")
def made_again(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> Iterator[Both]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("made_again")
        patch.setenv("NANSCOPE_SPOOL", str(folder / "spool"))
        yield run_both(folder / "work", str(SCRIPT), forked=forked)


def journals_of(both: Both) -> dict[str, list[Journal]]:
    """The journals by the class of their model, in the order of their beginnings."""
    found: dict[str, list[Journal]] = defaultdict(list)
    for journal in sorted(map(read_journal, both.runs), key=lambda one: one.start.time):
        line = next(line for line in both.bare.out.splitlines() if losses(journal)[0] == loss_of(line))
        found[line.split()[0]].append(journal)
    return found


def loss_of(line: str) -> float:
    return float(line.split()[1])


def losses(journal: Journal) -> list[float]:
    return [frame.scalars["loss"] for frame in journal.frames]


def steps_of(journal: Journal) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for frame in journal.frames:
        found[frame.member].append(frame.step)
    return dict(found)


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("Inner", {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}),
        ("Fold", {0: [0, 1], 1: [0, 1], 2: [0, 1]}),
        ("Trial", {0: [0, 1], 1: [0, 1], 2: [0, 1]}),
        ("Client", {0: [0, 1], 1: [0, 1], 2: [0, 1], 3: [0, 1]}),
        # Who is trained again goes on where it was.
        ("Lasting", {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}),
    ],
)
def test_what_is_made_again_is_one_run(made_again: Both, kind: str, members: dict[int, list[int]]) -> None:
    (journal,) = journals_of(made_again)[kind]
    assert steps_of(journal) == members
    printed = [loss_of(line) for line in made_again.bare.out.splitlines() if line.split()[0] == kind]
    assert losses(journal) == pytest.approx(printed)
    assert journal.end is not None
    assert journal.end.metrics_written == len(printed)


def test_what_is_trained_in_turn_has_a_run_each(made_again: Both) -> None:
    twins = journals_of(made_again)["Twin"]
    assert [set(steps_of(twin)) for twin in twins] == [{0}, {0}]


def test_model_that_steps_again_is_recorded_and_those_after_it_have_their_own_run(made_again: Both) -> None:
    both, last = journals_of(made_again)["Late"]
    assert steps_of(both) == {0: [0, 1, 2], 1: [0, 1]}
    assert steps_of(last) == {0: [0, 1]}


def test_one_line_tells_of_each_run(made_again: Both) -> None:
    told = [line.split()[3] for line in made_again.recorded.own_lines]
    assert len(told) == len(set(told))
    assert set(told) <= {run.name for run in made_again.runs}


def test_copies_that_a_script_watches_anew_are_one_run_unless_named_otherwise_or_closed(
    tmp_path: Path, spool: Path, forked: ForkedScripts
) -> None:
    script = SCRIPT.with_name("watched_again.py")
    reports = tmp_path / "reports"
    code, out, err = forked.start([str(script)], tmp_path, {"NANSCOPE_REPORT": f"{reports}/"}).finish()
    assert code == 0, err
    kinds = {run: kind for kind, run in map(str.split, out.splitlines())}
    found: dict[str, list[dict[int, list[int]]]] = defaultdict(list)
    for run, kind in kinds.items():
        journal = read_journal(spool / run)
        assert journal.end is not None
        assert journal.end.outcome == "finished"
        found[kind].append(steps_of(journal))
    steps = [0, 1, 2]
    assert found == {
        "Copied": [dict.fromkeys(range(4), steps)],
        "Named": [dict.fromkeys(range(2), steps)] * 2,
        "Closed": [{0: steps}] * 2,
    }
    assert sum("recording run" in line for line in err.splitlines()) <= len(kinds)
    assert {path.name for path in reports.iterdir()} == {f"nanscope-{run}.json" for run in kinds}


def test_store_unfolds_the_members(made_again: Both, tmp_path: Path) -> None:
    store = DuckStore(tmp_path)
    try:
        (inner,) = journals_of(made_again)["Inner"]
        # Its helper may be there still.
        report = SpoolIngest(store, made_again.spool).run_one(made_again.spool / inner.start.run)
        assert not report.missing
        rows = [row for row in run_rows(store)[::-1] if row.run.startswith(f"{inner.start.run}.m")]
        first = next(row for row in run_rows(store) if row.run == inner.start.run)
        assert [(row.member, row.state) for row in (first, *rows)] == [(n, "finished") for n in range(3)]
        for number, row in enumerate((first, *rows)):
            read = store.scalars(row.run, 0, ["loss"], StepRange(), 100)
            own = [frame.scalars["loss"] for frame in inner.frames if frame.member == number]
            assert list(read["mean"]) == pytest.approx(own)
            assert store.layout(row.run, 0) is not None
    finally:
        store.close()
