"""`dashboard events` of journals that are not whole: a real server that has stored the run is asked."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
import api_server
import msgspec
from sample_events import nan_event, spike_event
from sample_runs import write_run

from dashboard.cli import main
from dashboard.commands.stored_events import with_newer
from dashboard.serving.server import Server

RUN = "20260101-000000-abcdef12"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Started on a spool with a run, whose events it has read in; the commands find both."""
    for name, folder in (("XDG_STATE_HOME", "state"), ("NANSCOPE_SPOOL", "spool")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    events = [nan_event(run=RUN), *(spike_event(step, run=RUN) for step in range(10, 50, 10))]
    write_run(tmp_path / "spool", RUN, events=events, steps=3)
    with api_server.serving(tmp_path) as started:
        api_server.wait_stored(started, RUN, len(events))
        yield started


def listed(capsys: pytest.CaptureFixture[str], target: str = RUN) -> tuple[list[dict[str, Any]], str]:
    capsys.readouterr()
    assert main(["events", target, "--json"]) == 0
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def damage(folder: Path) -> None:
    """Break a record in the middle of the events."""
    (segment,) = folder.glob("0-1/events-*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))


def test_whole_journals_ask_nobody(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    events, said = listed(capsys)
    assert len(events) == 5 and "dashboard at" not in said


@pytest.mark.parametrize("loss", ["damaged record", "segment gone", "folder gone"])
def test_events_that_the_journals_lack_come_from_the_server(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path, loss: str
) -> None:
    whole, _ = listed(capsys)
    folder = tmp_path / "spool" / RUN
    if loss == "damaged record":
        damage(folder)
    elif loss == "segment gone":
        next(folder.glob("0-1/events-*.seg")).unlink()
    else:
        shutil.rmtree(folder)
    events, said = listed(capsys)
    assert events == whole
    assert f"of the events are from the store of the dashboard at {server.page}" in said
    assert main(["events", RUN]) == 0
    assert whole[0]["message"][:20] in capsys.readouterr().out


def test_damage_without_a_server_shows_the_rest_and_says_what_to_do(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server.stop()
    damage(tmp_path / "spool" / RUN)
    events, said = listed(capsys)
    assert 0 < len(events) < 5
    assert "the rest is shown. No dashboard runs" in said and "dashboard serve" in said


def test_run_that_nobody_knows_is_still_an_error(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "no-such-run"]) != 0
    assert "no-such-run" in capsys.readouterr().err


def test_newer_state_of_an_event_wins() -> None:
    old, new = spike_event(10, count=2), spike_event(10, count=9, ended=True)
    assert with_newer([new], [old]) == with_newer([old], [new]) == [new]
    mine = msgspec.structs.replace(old, message="mine")
    assert with_newer([mine], [old]) == [mine], "of two that are alike the journal's"
