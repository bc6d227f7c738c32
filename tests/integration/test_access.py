"""Real parts together: a training in a process of its own ships over CURVE, is asked by two roles, and says
by whom."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from told_training import told_training

from dashboard.callers import VIEW_ONLY
from dashboard.commands.events import load_events
from dashboard.commands.keygen import make_keys
from dashboard.ingest.curve import CLIENT_FILE, keys_folder
from dashboard.serving.server import Server
from probe.settings.places import read_serve_state
from probe.wire import Event

TOKEN, VIEW_TOKEN = "token-of-control", "token-of-a-viewer"


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    until_s = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < until_s, what
        time.sleep(0.05)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Listens for trainings on all addresses, with the keys of the state folder; reads no spool."""
    environment = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "NANSCOPE_TOKEN": TOKEN,
        "NANSCOPE_VIEW_TOKEN": VIEW_TOKEN,
    }
    make_keys(None, force=False, announce=lambda line: None, environment=environment)
    started = Server(
        port=0,
        ingest="tcp://0.0.0.0:0",
        data=tmp_path / "data",
        spool=tmp_path / "another-spool",
        environment=environment,
    )
    started.start()
    yield started
    started.stop()


def ask(server: Server, run: str, request: object, token: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.page.removeprefix("http://").rstrip("/"), timeout=20)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection.request("POST", f"/api/v1/runs/{run}/control", json.dumps(request), headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def audited(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "control"]


def test_training_ships_over_curve_and_says_who_has_asked_for_what(server: Server, tmp_path: Path) -> None:
    """The trainings of this machine find the keys by `serve.json`: nothing is set up for them."""
    state = read_serve_state({"XDG_STATE_HOME": str(tmp_path / "state")})
    assert state is not None and state.ingest.startswith("tcp://127.0.0.1:") and CLIENT_FILE in state.keys
    with told_training(tmp_path) as training:
        wait_for(lambda: server.store.runs(), "nothing arrives over CURVE")
        level = {"do": "set_level", "level": "advanced"}
        wait_for(lambda: ask(server, training.run, {"do": "state"}, TOKEN)[0] == 200, "no helper is there")
        status, told = ask(server, training.run, level, VIEW_TOKEN)
        assert (status, VIEW_ONLY[1:] in told["error"]["message"]) == (403, True)
        assert ask(server, training.run, level, TOKEN)[1]["answers"][0]["problem"] is None
        assert "not paused" in ask(server, training.run, {"do": "resume"}, TOKEN)[1]["answers"][0]["problem"]
        found = wait_for(
            lambda: (
                len(audited(server.store.events(training.run))) == 2
                and audited(server.store.events(training.run))
            ),
            "what was asked is no event",
        )
        training.end()
    by = "Requested by control from 127.0.0.1 over the HTTP API: "
    assert [(one.subject, one.severity, one.message) for one in found] == [
        (
            "set_level",
            "info",
            f"{by}set_level (level=advanced)\nAccepted.",
        ),
        (
            "resume",
            "info",
            f"{by}resume\nRefused: the training is not paused",
        ),
    ]
    # The journal has them too: what `dashboard events` lists.
    kept = load_events(str(tmp_path / "spool")).events
    assert [one.id for one in audited(list(kept))] == [one.id for one in found]
    assert server._collector is not None and server._collector.status.refused_handshakes == 0


def test_training_with_an_address_takes_the_keys_that_the_environment_names(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: no `serve.json`, one file of keys, which has the secret as well."""
    (keys,) = keys_folder({"XDG_STATE_HOME": str(tmp_path / "state")}).glob(CLIENT_FILE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mine = elsewhere / "keys.json"
    mine.write_bytes(keys.read_bytes())
    mine.chmod(0o600)
    monkeypatch.setenv("NANSCOPE_KEYS", str(mine))
    with told_training(elsewhere, connect=server.ingest) as training:
        wait_for(lambda: server.store.runs(), "nothing arrives over CURVE")
        training.end()
    wait_for(lambda: server.store.runs()[0].ranks[0].state == "finished", "the end does not arrive")
    assert server.store.runs()[0].run == training.run
