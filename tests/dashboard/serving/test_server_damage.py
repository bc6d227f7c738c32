"""`serve` over a data file that is damaged: replaced, read in again from the journals, and said."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from api_server import call, serving
from damaged_file import damage_table
from sample_runs import write_run

from dashboard.store.schema import FILE_NAME
from probe.wire import StreamKey


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


def test_serve_replaces_a_damaged_file_and_says_what_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dashboard.serving.spool_thread._LOOK_S", 0.05)
    spool = tmp_path / "spool"
    for run in ("kept", "other", "gone"):
        write_run(spool, run, steps=300, name=f"{run}.py")
    with serving(tmp_path) as server:
        wait_until(lambda: len(server.store.runs()) == 3, "not read in")
        wait_until(lambda: server.store.position(_metrics("gone")).next_seq == 300, "not read in")
        right = call(server, "/api/v1/runs/kept/series/values?name=loss&rank=0").body
    shutil.rmtree(spool / "gone")
    assert damage_table(tmp_path / "data" / FILE_NAME, "scalar_raw")
    with serving(tmp_path) as server:
        refused = call(server, "/api/v1/runs/kept/series/values?name=loss&rank=0")
        assert refused.status == 503
        assert "seems to be damaged" in refused.problem
        wait_until(lambda: "1 did not" in " ".join(server.notices()), "not told")
        wait_until(lambda: server.store.position(_metrics("kept")).next_seq == 300, "not read in again")
        again = call(server, "/api/v1/runs/kept/series/values?name=loss&rank=0")
        assert (again.status, again.body) == (200, right)
        text = " ".join(server.notices())
        assert "nanscope.duckdb.damaged-1" in text
        assert "Of 3 runs, 2 came back from their journals; 1 did not" in text
        assert "no journals any more: gone (gone.py)" in text
    assert "Of 3 runs, 2 came back" in caplog.text
    assert caplog.text.count("Of 3 runs, 2 came back") == 1


def test_serve_says_that_its_data_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.serving.spool_thread.SPOOL_INTERVAL_S", 0.05)
    with serving(tmp_path) as server:
        wait_until(lambda: (tmp_path / "data" / FILE_NAME).exists(), "no data file")
        assert server.notices() == []
        shutil.rmtree(tmp_path / "data")
        wait_until(lambda: f"{FILE_NAME} was removed while" in " ".join(server.notices()), "not told")


def _metrics(run: str) -> StreamKey:
    return StreamKey(run=run, writer="0-1", stream="metrics")
