"""A running training is changed through the HTTP API: server, collector, helper, trainer and back."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import seeded_model, train

import probe
from dashboard.client import Client
from dashboard.serving.server import Server
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.settings.places import read_serve_state

TOKEN = "token-for-tests"

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


@pytest.fixture
def server(tmp_path: Path, spool: Path) -> Iterator[Server]:
    started = Server(
        port=0,
        ingest="tcp://127.0.0.1:0",
        data=tmp_path / "data",
        spool=spool,
        environment={"XDG_STATE_HOME": str(tmp_path / "state"), "NANSCOPE_TOKEN": TOKEN},
    )
    started.start()
    yield started
    started.stop()


def call(
    server: Server,
    run: str,
    request: object = None,
    *,
    token: str = TOKEN,
    origin: str | None = None,
    query: str = "",
) -> tuple[int, Any]:
    host = server.page.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host, timeout=20)
    headers = {"x-nanscope-token": token, "origin": origin or f"http://{host}"}
    path = f"/api/v1/runs/{run}/control{query}"
    if request is None:
        connection.request("GET", path, headers=headers)
    else:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        connection.request("POST", path, body=body, headers={**headers, "content-type": "application/json"})
    answer = connection.getresponse()
    status, text = answer.status, answer.read()
    connection.close()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


def wait_for(condition: Any, what: str) -> Any:
    until = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return found


def test_watchpoint_pause_and_resume_over_http(
    server: Server, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = read_serve_state({"XDG_STATE_HOME": str(spool.parent / "state")})
    assert state is not None
    monkeypatch.setenv("NANSCOPE_SECRET", state.secret)
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, spool=spool, connect=server.ingest, run="asked") as run:
        train(model, optimizer, 2)
        wait_for(lambda: call(server, "asked")[0] == 200, "the run's helper is not connected")
        assert call(server, "asked", {"do": "resume"}, token="wrong")[0] == 401
        assert call(server, "asked", {"do": "resume"}, origin="http://evil.example")[0] == 403
        status, told = call(server, "asked", {"do": "add_watchpoint", "condition": "loss > lss"})
        assert (status, "'lss' at character 8" in told["error"]["message"]) == (422, True)
        assert call(server, "asked", b"{")[0] == 422
        assert call(server, "other", {"do": "resume"})[0] == 404
        assert call(server, "asked", {"do": "resume"}, query="?rank=5")[0] == 409
        # What no message can carry, or no helper reads, must not reach the collector.
        for rank in (-1, 2**62 + 1, 10**30):
            assert call(server, "asked", query=f"?rank={rank}")[0] == 422
        wanted = {"do": "add_watchpoint", "condition": "step == 6", "action": "pause", "name": "stop"}
        status, told = call(server, "asked", wanted)
        assert (status, told["answers"][0]["problem"]) == (200, None)
        assert told["answers"][0]["state"]["watchpoints"] == [
            {"name": "stop", "condition": "step == 6", "action": "pause", "once": False}
        ]
        trainer = threading.Thread(target=train, args=(model, optimizer, 8))
        trainer.start()
        wait_for(lambda: run.is_paused, "the training does not pause")
        answer = call(server, "asked")[1]["answers"][0]
        assert (answer["rank"], answer["state"]["is_paused"], answer["state"]["step"]) == (0, True, 6)
        answer = call(server, "asked", {"do": "resume"})[1]["answers"][0]
        assert (answer["problem"], answer["state"]["is_paused"]) == (None, False)
        trainer.join(timeout=30)
        assert not trainer.is_alive()
        assert "not paused" in call(server, "asked", {"do": "resume"})[1]["answers"][0]["problem"]
    wait_for(lambda: call(server, "asked")[0] == 409, "an ended run still answers")
    lock = lock_path(host_folder(spool / "asked"))
    wait_for(lambda: lock_owner(lock) is None, "the helper does not leave")


@pytest.mark.capability(50, 54)
def test_level_off_is_switched_on_and_cleared_over_http(
    server: Server, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = read_serve_state({"XDG_STATE_HOME": str(spool.parent / "state")})
    assert state is not None
    monkeypatch.setenv("NANSCOPE_SECRET", state.secret)
    monkeypatch.chdir(spool.parent)  # clearing saves a report first
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    client = Client(server.page, TOKEN)
    with probe.watch(model, optimizer, spool=spool, connect=server.ingest, run="quiet", level="off"):
        train(model, optimizer, 2)
        wait_for(lambda: call(server, "quiet")[0] == 200, "the run's helper is not connected")
        assert call(server, "quiet")[1]["answers"][0]["state"]["level"] == "off"
        post = urllib.request.Request(
            f"{server.page}training-logs/debug/level/advanced",
            method="POST",
            headers={"authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(post, timeout=20) as answer:
            assert json.loads(answer.read())["answers"][0]["problem"] is None
        train(model, optimizer, 3)
        (told,) = client.control("quiet", {"do": "state"})
        assert told.state is not None
        assert told.state["level"] == "advanced"
        (told,) = client.control("quiet", {"do": "clear"})
        assert told.problem is None
        wait_for(lambda: "grad_norm" in server.store.scalar_names("quiet"), "nothing is measured")
    lock = lock_path(host_folder(spool / "quiet"))
    wait_for(lambda: lock_owner(lock) is None, "the helper does not leave")
