"""RUN|SPOOL: what an argument on the command line means, and what a user's mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_events import nan_event, spike_event
from sample_runs import write_run

from dashboard.cli import main
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
    with pytest.raises(UnknownRunError, match=r"Newest runs: alpha-1 \(first.py\), alpha-2"):
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


@pytest.fixture
def gan(spool: Path) -> Path:
    """A training of two models twice, a sweep over one model, and a run with a name of its own."""
    for launch, time in (("gan-1", 400.0), ("gan-2", 500.0)):
        write_run(spool, launch, name="gan.py (judge)", time=time, group=launch, model="judge")
        painter = f"{launch}-painter"
        write_run(spool, painter, name="gan.py (painter)", time=time + 1, group=launch, model="painter")
    write_run(spool, "x-first", name="sweep.py", time=600.0, group="x-first", events=[])
    write_run(spool, "a-second", name="sweep.py", time=601.0, group="x-first", events=[])
    write_run(spool, "named", name="sweep", time=50.0, group="named", events=[])
    return spool


@pytest.mark.parametrize(
    ("argument", "runs"),
    [
        ("gan", ["gan-2", "gan-2-painter"]),
        ("gan.py", ["gan-2", "gan-2-painter"]),
        ("gan.py (painter)", ["gan-2-painter"]),
        ("gan (painter)", ["gan-2-painter"]),
        ("gan-1", ["gan-1", "gan-1-painter"]),
        ("gan-1-", ["gan-1-painter"]),
        ("gan-1-painter", ["gan-1-painter"]),
        ("first", ["beta"]),
        ("sweep.py", ["x-first", "a-second"]),
        ("sweep", ["named"]),
        ("x-f", ["x-first", "a-second"]),
    ],
)
def test_resolve_runs_takes_a_script_with_all_its_models(gan: Path, argument: str, runs: list[str]) -> None:
    assert [run.run for run in resolve_runs(argument)] == runs


def test_resolve_runs_takes_a_scripts_file_and_the_folder_of_a_group(
    gan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "gan.py").touch()
    (tmp_path / "first" / "other things").mkdir(parents=True)
    assert [run.run for run in resolve_runs("scripts/gan.py")] == ["gan-2", "gan-2-painter"]
    assert [run.run for run in resolve_runs(str(gan / "gan-1"))] == ["gan-1", "gan-1-painter"]
    assert [run.run for run in resolve_runs(str(gan / "gan-1-painter"))] == ["gan-1-painter"]
    assert [run.run for run in resolve_runs("first")] == ["beta"]
    with pytest.raises(NotASpoolError):
        resolve_runs("./first")


@pytest.mark.parametrize(
    ("argument", "run"),
    [
        ("my notes", "cell-3"),
        ("my notes.ipynb", "cell-3"),
        ("my notes.ipynb [2]", "cell-2"),
        ("my notes [2]", "cell-2"),
        ("net (v2)", "versioned"),
        ("net (v2).py", "versioned"),
        ("net (v2) (G)", "versioned"),
    ],
)
def test_resolve_runs_takes_notebooks_and_names_with_brackets(spool: Path, argument: str, run: str) -> None:
    write_run(spool, "cell-2", name="my notes.ipynb [2]", time=400.0, model="Linear")
    write_run(spool, "cell-3", name="my notes.ipynb [3]", time=500.0, model="Linear")
    write_run(spool, "versioned", name="net (v2).py (G)", time=600.0, model="G")
    assert [found.run for found in resolve_runs(argument)] == [run]


def test_resolve_run_of_several_models_lists_them_a_line_each(gan: Path) -> None:
    with pytest.raises(UnknownRunError) as caught:
        resolve_run("gan")
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("give the id of one:")
    assert [line.split("  ")[1:3] for line in lines] == [
        ["gan-2", "gan.py (judge)"],
        ["gan-2-painter", "gan.py (painter)"],
    ]
    assert resolve_run("gan-2").run == "gan-2"
    assert resolve_run(str(gan / "gan-2")).run == "gan-2"
    assert resolve_run("gan (judge)").run == "gan-2"


def test_resolve_run_of_a_model_trained_again_means_the_newest(gan: Path) -> None:
    assert resolve_run("sweep.py").run == "a-second"


def test_events_of_several_trainings_come_in_order_of_time(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, group, started, step in (("b", "b", 9.0, 7), ("b-judge", "b", 9.5, 3), ("a", "a", 10.0, 1)):
        event = nan_event(run=run, step=step, id=f"{step:016x}", model=run)
        write_run(spool.parent / "other", run, time=started, group=group, model=run, events=[event])
    assert main(["events", str(spool.parent / "other"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["run"] for line in out.splitlines()] == ["b-judge", "b", "a"]
    assert [line.split()[0] for line in err.splitlines()[1:]] == ["b", "b-judge", "a"]
    assert main(["events", str(spool.parent / "other" / "b")]) == 0
    out, err = capsys.readouterr()
    assert ["model b" in line for line in out.splitlines() if "rank 0" in line] == [True, True]
    assert "3 runs" not in err


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
