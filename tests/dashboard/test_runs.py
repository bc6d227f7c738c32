"""RUN|SPOOL: what an argument on the command line means, and what a user's mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_events import nan_event, spike_event
from sample_runs import write_run

from dashboard.errors import DashboardError, NotASpoolError, UnknownRunError
from dashboard.packaged import packaged_file
from dashboard.runs import read_events, require_spool, resolve_run, resolve_runs
from probe.settings.places import ServeState, write_serve_state


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spool"
    monkeypatch.setenv("NANSCOPE_SPOOL", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_run(folder, "alpha-1", name="first.py", time=100.0)
    write_run(folder, "alpha-2", name="second.py", time=200.0)
    write_run(folder, "beta", name="first.py", time=300.0)
    return folder


def test_resolve_runs_spool_gives_all_runs_oldest_first(spool: Path) -> None:
    assert [run.run for run in resolve_runs(str(spool))] == ["alpha-1", "alpha-2", "beta"]


def test_resolve_runs_run_folder_gives_that_run(spool: Path) -> None:
    assert [run.run for run in resolve_runs(str(spool / "beta"))] == ["beta"]


@pytest.mark.parametrize(
    ("argument", "run"), [("alpha-1", "alpha-1"), ("be", "beta"), ("second.py", "alpha-2")]
)
def test_resolve_run_takes_id_prefix_or_name(spool: Path, argument: str, run: str) -> None:
    assert resolve_run(argument).run == run


def test_resolve_run_shared_name_means_the_newest_run(spool: Path) -> None:
    assert resolve_run("first.py").run == "beta"


def test_resolve_run_ambiguous_prefix_names_the_runs(spool: Path) -> None:
    with pytest.raises(
        UnknownRunError, match=r"alpha-1 \(first.py\), alpha-2 \(second.py\); give more of it"
    ):
        resolve_run("alpha")


def test_resolve_run_unknown_name_says_what_there_is(spool: Path) -> None:
    with pytest.raises(UnknownRunError, match=r"it holds alpha-1 \(first.py\), alpha-2"):
        resolve_run("gamma")


def test_resolve_run_unknown_name_points_to_a_running_dashboard(spool: Path) -> None:
    write_serve_state(ServeState(page="http://127.0.0.1:9/", ingest="tcp://127.0.0.1:8", pid=1, secret="00"))
    with pytest.raises(UnknownRunError, match=r"dashboard at http://127\.0\.0\.1:9/ may know"):
        resolve_run("gamma")


def test_resolve_run_name_of_a_file_in_the_working_directory_is_a_name(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second.py").write_text("print()")
    monkeypatch.chdir(tmp_path)
    assert resolve_run("second.py").run == "alpha-2"


def test_resolve_run_spool_of_several_asks_for_one(spool: Path) -> None:
    with pytest.raises(UnknownRunError, match="holds 3 runs; give the folder of one"):
        resolve_run(str(spool))


def test_resolve_runs_empty_folder_is_an_empty_spool(tmp_path: Path) -> None:
    assert resolve_runs(str(tmp_path)) == []


def test_resolve_runs_spool_of_runs_that_have_written_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "20261120-101010-abcd" / "0-1700000000000000000").mkdir(parents=True)
    (tmp_path / "20261120-101011-abcd" / "host-box").mkdir(parents=True)
    (tmp_path / "20261120-101012-abcd").mkdir()
    assert resolve_runs(str(tmp_path)) == []


def test_resolve_runs_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos" / "summer-2024").mkdir(parents=True)
    with pytest.raises(NotASpoolError, match="is not a spool"):
        resolve_runs(str(tmp_path))


def test_resolve_runs_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotASpoolError, match="does not exist"):
        resolve_runs(str(tmp_path / "nowhere"))


def test_resolve_runs_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(NotASpoolError, match="is a file"):
        resolve_runs(str(tmp_path / "notes.txt"))


def test_resolve_run_in_a_default_spool_that_is_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path / "notes.txt"))
    with pytest.raises(NotASpoolError, match="is a file; set NANSCOPE_SPOOL to a folder"):
        resolve_run("gamma")


def test_resolve_run_in_a_spool_that_does_not_exist_yet_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError, match="it does not exist yet"):
        resolve_run("gamma", spool=tmp_path / "nowhere")


@pytest.mark.parametrize("given", [True, False])
def test_require_spool_that_is_a_file_is_refused(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path / "notes.txt"))
    with pytest.raises(NotASpoolError, match="is a file"):
        require_spool(tmp_path / "notes.txt" if given else None)


def test_require_spool_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(NotASpoolError, match="no run; give a spool's folder"):
        require_spool(tmp_path)


def test_require_spool_that_is_still_to_be_made_is_taken(tmp_path: Path) -> None:
    require_spool(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_read_events_keeps_the_latest_state_in_order_of_step_and_time(tmp_path: Path) -> None:
    early, late = spike_event(10, time=5.0), nan_event(step=10, time=4.0)
    ended = spike_event(10, time=5.0, count=9, ended=True)
    folder = write_run(tmp_path, events=[spike_event(500, time=1.0), early, late, ended])
    found = [(event.id, event.count) for event in read_events([folder]).events]
    assert found == [(late.id, 1), (ended.id, 9), (spike_event(500).id, 1)]


def test_read_events_damaged_record_is_counted_and_the_rest_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path, events=[spike_event(step) for step in range(50)])
    (segment,) = folder.glob("0-1/events-*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))
    found = read_events([folder])
    assert found.unreadable >= 1
    assert 0 < len(found.events) < 50


def test_packaged_file_in_neither_place_says_that_the_installation_is_damaged() -> None:
    assert packaged_file("assets/event.css").is_file()
    with pytest.raises(DashboardError, match="missing from this installation"):
        packaged_file("assets/nosuch.css")
