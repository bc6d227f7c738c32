"""`dashboard runs`, one event shown whole, and commands without RUN, on a spool of several trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_events import nan_event, spike_event
from sample_runs import write_models, write_run

from dashboard.cli import main
from dashboard.page.views.event_report import event_report
from probe.wire.message_lines import EARLIER, MOVED, NOT_DETERMINED

RATE = "learning rate 0.001 -> 0.3 at step 60"
CAUSED = nan_event(
    run="older",
    message=f"NaN first at step 400 in `blocks.3`, model.py:26, forward\n{MOVED}loss 9x{EARLIER}{RATE}",
)
QUIET = spike_event(
    id="c" * 16,
    run="older",
    kind="throttled",
    severity="info",
    message="Measures activations every 400 steps",
)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training with a fault, a newer one of two models, of which one has a warning, and one without any."""
    folder = tmp_path / "spool"
    monkeypatch.setenv("NANSCOPE_SPOOL", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write_run(folder, "older", name="train.py", time=100.0, events=[CAUSED, QUIET], steps=3)
    write_run(folder, "gan", name="gan.py (critic)", model="critic", time=200.0, events=[], steps=3)
    warned = spike_event(run="gan-painter", id="d" * 16)
    write_run(
        folder, "gan-painter", name="gan.py (painter)", model="painter", time=201.0, group="gan",
        events=[warned], steps=3,
    )  # fmt: skip
    write_run(folder, "newest", name="fine.py", time=300.0, events=[], steps=3)
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return tuple(capsys.readouterr())  # type: ignore[return-value]


def test_runs_are_listed_newest_first_with_the_verdict(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, "runs")[0].splitlines()
    rows = [line.split() for line in lines if not line.startswith("    ")]
    assert [(row[0], row[1]) for row in rows] == [("✓", "newest"), ("▲", "gan"), ("◆", "older")]
    assert rows[0][-2:] == ["no", "warnings"] and rows[1][-2:] == ["1", "warning"]
    assert rows[2][-2:] == ["1", "critical"], "what is about the probe alone is not counted"
    assert lines[-1].strip() == "NaN first at step 400 in `blocks.3`, model.py:26, forward"
    found = [json.loads(line) for line in said(capsys, "runs", "--json")[0].splitlines()]
    assert [(one["run"], one["critical"], one["warnings"]) for one in found] == [
        ("newest", 0, 0), ("gan", 0, 1), ("older", 1, 0),
    ]  # fmt: skip
    assert [model["run"] for model in found[1]["models"]] == ["gan", "gan-painter"]
    assert (found[2]["event"], found[0]["event"], found[0]["verdict"]) == (CAUSED.id, None, None)
    assert "No runs yet" in said(capsys, "runs", "--spool", str(spool / "none"))[0]


def test_run_that_cannot_be_read_is_listed_without_a_verdict(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spool / "newest" / "run.json").write_text("{}")
    (spool / "older" / "run.json").write_bytes(b"\xff\x1b[2J")
    write_run(spool, "torn", name="torn.py", time=400.0, events=[], steps=3)
    segment = next((spool / "torn").glob("*/events-*.seg"))
    segment.write_bytes(segment.read_bytes()[:-9] + b"nine more")
    lines = said(capsys, "runs")[0].splitlines()
    rows = {line.split()[1]: (line, below) for line, below in zip(lines, [*lines[1:], ""], strict=True)}
    for run, problem in (("newest", "its run.json does not decode"), ("torn", "missing or damaged")):
        line, below = rows[run]
        assert line.startswith("? ") and line.endswith("no verdict"), line
        assert below.startswith("    ") and problem in below
    # What its journal has is known all the same.
    assert rows["older"][0].startswith("◆ ") and rows["older"][0].endswith("1 critical")
    assert "does not decode" in rows["older"][1] and any("NaN first at step 400" in line for line in lines)
    assert rows["gan"][0].startswith("▲ ")
    found = {one["run"]: one for one in map(json.loads, said(capsys, "runs", "--json")[0].splitlines())}
    assert "does not decode" in found["newest"]["problem"] and found["newest"]["verdict"] is None
    assert found["gan"]["problem"] is None


def test_run_that_is_left_out_is_the_newest(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "events")
    assert out == "no events\n" and "the newest run:" in err and "newest  fine.py" in err
    said(capsys, "export")
    assert (spool.parent / "nanscope-newest.html").stat().st_size > 1000
    out, err = said(capsys, "export", "older", "--format", "csv", "--track", "loss")
    assert err == "dashboard: written: nanscope-older-loss.csv\n"
    assert (spool.parent / "nanscope-older-loss.csv").read_text().count("\n") == 4
    out, err = said(capsys, "events", "--json")
    assert out == ""


def test_newest_run_of_an_empty_spool_says_how_to_record_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path / "none"))
    for command in (["events"], ["export"], ["resume"]):
        assert "yet; record one with `dashboard run SCRIPT`" in said(capsys, *command, code=2)[1]


def test_events_give_the_cause_and_fold_what_is_about_the_probe(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, "events", "older")[0].splitlines()
    assert lines[2] == f"    Changed before it: {RATE}"
    assert lines[-2] == "1 critical"
    assert lines[-1] == f"not counted: Measures activations every 400 steps  [older {QUIET.id}]"
    assert len(said(capsys, "events", "older", "--json")[0].splitlines()) == 2
    reason = f"{NOT_DETERMINED}the parameter `wte.weight` was already non-finite before the forward"
    write_run(spool, "weights", events=[nan_event(run="weights", message=f"NaN\n{reason}.")], steps=3)
    assert f"    {reason}.\n" in said(capsys, "events", "weights")[0]


def test_one_event_is_shown_whole_by_its_id_or_the_beginning_of_it(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = event_report(CAUSED)
    assert RATE in whole and "Where\n" in whole and "Forward stack" in whole
    assert said(capsys, "events", "older", CAUSED.id)[0] == whole
    assert said(capsys, "events", "older", CAUSED.id[:6].upper())[0] == whole
    assert said(capsys, "events", str(spool), CAUSED.id)[0] == whole
    assert json.loads(said(capsys, "events", "older", CAUSED.id, "--json")[0])["id"] == CAUSED.id
    assert said(capsys, "events", "older", QUIET.id)[0].startswith("Measures activations")
    near = CAUSED.id[:-1] + ("0" if CAUSED.id[-1] != "0" else "1")
    assert (
        f"No event '{near}' in older. Did you mean {CAUSED.id}?"
        in said(capsys, "events", "older", near, code=2)[1]
    )
    assert "lists them, each with its id" in said(capsys, "events", "older", "zz", code=2)[1]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("trian.py", "train.py"), ("Fine", "fine.py"), ("painter", "gan-painter"), ("nothing-like-it", None)],
)
def test_wrong_name_gets_the_nearest_one_and_the_newest_runs(
    given: str, meant: str | None, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = said(capsys, "events", given, code=2)[1]
    assert err.startswith(f"dashboard: No run called '{given}' in {spool}.")
    assert (f"Did you mean {meant}?" in err) == (meant is not None)
    assert err.endswith("gan-painter (gan.py (painter)), newest (fine.py).\n") and err.count("\n") == 1


def test_models_made_one_after_the_other_are_one_row_whose_verdict_names_the_model(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [nan_event(run="sweep", member=2), spike_event(run="sweep")]
    write_models(spool, "sweep", [(1.0,), (4.0,), (6.0,)], events=events)
    assert main(["runs"]) == 0
    assert "    model 3: NaN first at step 400" in capsys.readouterr().out
    assert main(["runs", "--json"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    (row,) = (line for line in lines if line["run"] == "sweep")
    assert (row["event"], row["member"], row["critical"]) == (events[0].id, 2, 1)
    assert main(["events", "sweep", "--member", "2", "--json"]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [events[0].id]
    assert main(["events", "sweep", "--member", "1", "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["events", "sweep", "--member", "3"]) == 2
    assert "choose one from 0 to 2" in capsys.readouterr().err
    # As the page lists it.
    for command in (["events", "sweep.m2"], ["export", "sweep.m2"], ["diff", "sweep.m2", "sweep"]):
        assert main(command) == 2
        assert "model 3 of the run sweep: give sweep, and `--member 2`" in capsys.readouterr().err
    assert main(["export", "older.m"]) == 2
    assert "Did you mean older?" in capsys.readouterr().err


def test_wrong_name_gets_five_runs_of_many(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(9):
        write_run(spool, f"many-{number}", name="many.py", time=400.0 + number, events=[], steps=1)
    err = said(capsys, "events", "unknown-name", code=2)[1]
    assert err.count("(many.py)") == 5 and "many-8" in err and "8 more" in err
