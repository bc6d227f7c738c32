"""A real server over real HTTP for the tests of the routes, filled with a synthetic run."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import page_runs

from dashboard.serving.server import Server
from probe.wire import Document, encode

TOKEN = "token-for-tests"
VIEW_TOKEN = "token-of-a-viewer"
BEARER = {"authorization": f"Bearer {TOKEN}"}
RUN = "demo-run"


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """What a refusal says; fails where the answer has another form."""
        (error,) = self.json().values()
        assert set(error) == {"code", "message"}
        return str(error["message"])


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(
        port=0,
        ingest="tcp://127.0.0.1:0",
        data=folder / "data",
        spool=folder / "spool",
        environment={
            "XDG_STATE_HOME": str(folder / "state"),
            "NANSCOPE_TOKEN": TOKEN,
            "NANSCOPE_VIEW_TOKEN": VIEW_TOKEN,
        },
    )
    server.start()
    yield server
    server.stop()


def call(
    server: Server,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Got:
    """Ask with the bearer token, or with these headers instead."""
    connection = http.client.HTTPConnection(server.page.removeprefix("http://").rstrip("/"), timeout=20)
    sent = BEARER if headers is None else headers
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, body=data, headers={"content-type": "application/json", **sent})
    answer = connection.getresponse()
    named = {name.lower(): value for name, value in answer.getheaders()}
    got = Got(answer.status, named, answer.read())
    connection.close()
    return got


def session(server: Server, token: str) -> dict[str, str]:
    """Open the page's address, and return the headers that its own scripts send then."""
    cookie = call(server, f"/?token={token}", headers={}).headers["set-cookie"].partition(";")[0]
    return {"cookie": cookie, "origin": server.page.rstrip("/")}


def fill(server: Server, *, steps: int = 40, run: str = RUN, is_full: bool = False) -> None:
    """A run with NaN at step 7, and three events: two about the training, one about the process."""
    page_runs.fill(server.store, steps=range(steps), bad={7: "nan"}, run=run, is_full=is_full)
    page_runs.add_event(
        server.store,
        page_runs.event(7, run=run, kind="nonfinite_loss"),
        page_runs.event(9, run=run, kind="gradient_explosion", severity="warning", subject="head"),
        page_runs.event(12, run=run, kind="memory_leak", severity="warning", subject="rss"),
    )


def wait_stored(server: Server, run: str, events: int) -> None:
    """Return once the server has read a run's events in from its spool."""
    until_s = time.monotonic() + 60
    while len(server.store.events(run)) < events:
        assert time.monotonic() < until_s, "the run is not read in"
        time.sleep(0.05)


def add_document(server: Server, body: bytes, *, kind: str = "memory_snapshot", key: str = "start") -> None:
    events = page_runs.key("events")
    record = encode(Document(kind=kind, key=key, step=3, time=1_700_000_000.5, body=body))
    server.store.append(events, server.store.position(events).next_seq, [record])
    server.store.commit()
