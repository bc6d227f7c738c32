"""`dashboard serve --outlets`, from the front door: a journal here, a real HTTP server there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import page_runs
import pytest
from receiver import Answer, receiving, wait_for
from sample_events import nan_event
from sample_runs import write_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))
import api_server

from dashboard.outlets.settings import read_outlets
from dashboard.serving.server import Server

ROOT = Path(__file__).resolve().parents[3]


def outlets_file(folder: Path, url: str, *, more: str = "") -> Path:
    path = folder / "outlets.toml"
    path.write_text(f'[[webhook]]\nname = "ops"\nurl = "{url}"\ngroup_s = 0\n{more}')
    path.chmod(0o600)
    return path


@contextmanager
def serving(folder: Path, file: Path) -> Iterator[Server]:
    state = {"XDG_STATE_HOME": str(folder / "state"), "NANSCOPE_TOKEN": api_server.TOKEN}
    server = Server(
        port=0,
        ingest="tcp://127.0.0.1:0",
        data=folder / "data",
        spool=folder / "spool",
        outlets=read_outlets(file, {}),
        environment=state,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.capability(6)
def test_serve_tells_a_webhook_of_the_first_critical_event_of_a_training(tmp_path: Path) -> None:
    event = msgspec.structs.replace(nan_event(), time=time.time())
    write_run(tmp_path / "spool", events=[event])
    with receiving() as receiver:
        command = [sys.executable, "-m", "dashboard", "serve", "--port", "0", "--no-browser"]
        command += ["--ingest", "tcp://127.0.0.1:*", "--data", str(tmp_path / "data")]
        command += ["--spool", str(tmp_path / "spool")]
        environment = {**os.environ, "NANSCOPE_OUTLETS": str(outlets_file(tmp_path, receiver.url))}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
            try:
                (request,) = receiver.wait(1)
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=30)
    (told,) = request.json()["events"]
    assert (told["id"], told["severity"]) == (event.id, "critical")
    assert process.returncode == 0


def test_serve_shows_a_webhook_that_fails_in_health_and_on_the_page_and_not_where_it_is(
    tmp_path: Path,
) -> None:
    with receiving(Answer(404)) as receiver:
        with serving(tmp_path, outlets_file(tmp_path, receiver.url + "/SECRET")) as server:
            page_runs.fill(server.store, steps=range(1))
            page_runs.add_event(server.store, page_runs.event(0, time=time.time()))
            wait_for(lambda: server.notices() != [])
            got = api_server.call(server, "/health").body.decode()
            (outlet,) = json.loads(got)["outlets"]
            assert (outlet["failed"], outlet["problem"]) == (1, "it answered 404")
            metrics = api_server.call(server, "/metrics").body.decode()
            assert 'nanscope_outlet_failed_total{outlet="ops"} 1' in metrics
            assert server.notices() == [
                "Outlet ops: it answered 404. 0 events waiting, 1 requests abandoned."
            ]
            assert "SECRET" not in got + metrics + "".join(server.notices())


def test_serve_goes_on_storing_while_a_webhook_hangs_and_ends_all_the_same(tmp_path: Path) -> None:
    with receiving(Answer(hangs=True)) as receiver:
        file = outlets_file(tmp_path, receiver.url, more="timeout_s = 0.5\n")
        with serving(tmp_path, file) as server:
            page_runs.fill(server.store, steps=range(1))
            page_runs.add_event(server.store, page_runs.event(0, time=time.time()))
            receiver.wait(1)
            page_runs.fill(server.store, steps=range(1, 20))
            assert server.store.runs()[0].ranks[0].last_step == 19


def test_serve_with_a_wrong_file_says_so_and_does_not_start(tmp_path: Path) -> None:
    from dashboard.cli import main

    assert main(["serve", "--no-browser", "--outlets", str(outlets_file(tmp_path, "nowhere"))]) == 2
