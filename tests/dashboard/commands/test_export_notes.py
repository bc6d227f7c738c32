"""`dashboard export` has what people have written at steps: from the server, else from the store's file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
import api_server
from sample_events import nan_event
from sample_runs import write_models, write_run

from dashboard.cli import main
from dashboard.serving.server import Server
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepNote

RUN = "20260101-000000-abcdef12"
NOTE = StepNote(id="0" * 16, step=1, text="lr halved <b>", time=1.7e9)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spool with a run, which the commands find."""
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path / "spool"))
    write_run(tmp_path / "spool", RUN, events=[nan_event(run=RUN)], steps=3)
    return tmp_path / "spool"


@pytest.fixture
def server(spool: Path) -> Iterator[Server]:
    """Started on that spool; somebody has written a note at a step of the run, and one of another."""
    with api_server.serving(spool.parent) as started:
        api_server.wait_stored(started, RUN, 1)
        started.store.write_note(RUN, NOTE)
        started.store.write_note("another", NOTE)
        yield started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where the user's store is, without one."""
    return tmp_path / "state" / "nanscope" / "data"


def exported(*options: str, form: str = "json") -> str:
    target = Path(options[options.index("-o") + 1])
    assert main(["export", RUN, "--format", form, *options]) == 0
    return target.read_text()


@pytest.mark.parametrize("is_running", [True, False])
def test_export_has_the_notes_of_the_dashboard(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_running: bool
) -> None:
    chosen = ["--data", str(tmp_path / "data")]
    if not is_running:
        server.stop()
    target = ["-o", str(tmp_path / "out")]
    kept = {"id": NOTE.id, "step": 1, "text": "lr halved <b>", "time": 1.7e9}
    assert json.loads(exported(*chosen, *target))["notes"] == [kept]
    assert "lr halved &lt;b&gt;" in exported(*chosen, *target, form="html")
    if is_running:
        assert json.loads(exported(*target))["notes"] == [kept], "serve.json names the folder"
    assert said_beside_the_place(capsys) == []


def test_store_that_cannot_be_read_leaves_an_export_without_notes_and_a_line(
    spool: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.mkdir(parents=True)
    (data / "nanscope.duckdb").write_bytes(b"no database" * 1000)
    assert json.loads(exported("-o", str(tmp_path / "out")))["notes"] == []
    (line,) = said_beside_the_place(capsys)
    assert "Notes at steps are in the dashboard's store, not in the journals" in line
    assert (data / "nanscope.duckdb").exists(), "an export moves no file"


def test_table_and_a_user_without_a_store_need_no_notes(
    spool: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(exported("-o", str(tmp_path / "out")))["notes"] == []
    assert not data.exists()
    data.mkdir(parents=True)
    (data / "nanscope.duckdb").write_bytes(b"no database" * 1000)
    exported("-o", str(tmp_path / "out"), form="csv")
    assert said_beside_the_place(capsys) == []


def test_store_of_the_user_is_read_without_being_told_where(spool: Path, data: Path, tmp_path: Path) -> None:
    store = DuckStore(data)
    store.write_note(RUN, NOTE)
    store.close()
    before = (data / "nanscope.duckdb").read_bytes()
    assert [note["step"] for note in json.loads(exported("-o", str(tmp_path / "out")))["notes"]] == [1]
    assert (data / "nanscope.duckdb").read_bytes() == before
    assert {path.name for path in data.iterdir()} == {"nanscope.duckdb", "nanscope.runs.json"}


def test_one_of_the_models_that_a_run_made_is_exported(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_models(spool, "sweep", [(1.0, 2.0), (4.0, 5.0), (6.0, 7.0)])
    monkeypatch.chdir(tmp_path)
    options = ["export", "sweep", "--format", "csv", "--track", "loss"]
    assert main([*options, "--member", "2"]) == 0
    rows = (tmp_path / "nanscope-sweep.m2-loss.csv").read_text().splitlines()[1:]
    assert [row.split(",")[7] for row in rows] == ["6.0", "7.0"]
    assert said_beside_the_place(capsys) == []
    assert main([*options, "-o", "first.csv"]) == 0
    assert "made 3 models; this is the first" in said_beside_the_place(capsys)[0]
    assert main([*options, "--member", "3"]) == 2
    assert "choose one from 0 to 2" in said_beside_the_place(capsys)[0]


def said_beside_the_place(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What export says besides where each file was written."""
    return [
        line for line in capsys.readouterr().err.splitlines() if not line.startswith("dashboard: written: ")
    ]
