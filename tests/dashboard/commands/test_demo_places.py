"""`dashboard demo` beside a dashboard that runs takes other ports and a folder of its own, and says so."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.commands import demo
from dashboard.serving.running import RunningNote

RUNNING = RunningNote(page="http://127.0.0.1:1/", token="t", pid=1)


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    with taken_port() as port:
        return port


def options(**changes: Any) -> demo.DemoOptions:
    made: dict[str, Any] = {
        "host": "127.0.0.1", "port": demo.DEFAULT_PAGE_PORT, "ingest": demo.DEFAULT_INGEST, "data": None,
        "spool": None, "open_browser": False, "script_arguments": (), "ends_by_itself": True,
    }  # fmt: skip
    return demo.DemoOptions(**made | changes)


@pytest.mark.parametrize("is_served", [False, True], ids=["folder_free", "folder_taken"])
@pytest.mark.parametrize("is_taken", [False, True], ids=["ports_free", "ports_taken"])
def test_usual_places_that_are_taken_are_replaced(
    is_taken: bool, is_served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with taken_port() as first, taken_port() as second, contextlib.ExitStack() as folders:
        page, ingest = (first, second) if is_taken else (free_port(), free_port())
        monkeypatch.setattr(demo, "DEFAULT_PAGE_PORT", page)
        monkeypatch.setattr(demo, "DEFAULT_INGEST", f"tcp://127.0.0.1:{ingest}")
        monkeypatch.setattr(demo, "find_server_of", lambda data: RUNNING if is_served else None)
        found = demo._with_free_places(options(), folders, said.append)
        ports = (0, "tcp://127.0.0.1:*") if is_taken else (page, f"tcp://127.0.0.1:{ingest}")
        assert (found.port, found.ingest) == ports
        assert (found.data is not None, found.spool is not None) == (is_served, is_served)
        own = None if found.data is None else found.data.parent
        assert own is None or (own.is_dir() and found.spool == own / "spool")
        assert len(said) == (is_taken or is_served)
        text = "".join(said)
        assert ("free ports" in text) == is_taken and (f"{own}, which is removed" in text) == is_served
    assert own is None or not own.exists()


def test_places_that_were_asked_for_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_server_of", lambda data: RUNNING)
    with taken_port() as port, contextlib.ExitStack() as folders:
        asked = options(port=port, ingest=f"tcp://127.0.0.1:{port}", data=tmp_path / "data")
        assert demo._with_free_places(asked, folders, pytest.fail) == asked
