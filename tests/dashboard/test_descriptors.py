"""Few open files are shared out: pages first."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dashboard.descriptors import LEAST, WANTED, most_connections, raise_limit

SERVE = """
import resource, sys, threading
from pathlib import Path
from dashboard.serving.server import Server
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder = Path(sys.argv[1])
server = Server(
    port=0,
    ingest="tcp://127.0.0.1:0",
    data=folder / "data",
    spool=folder / "spool",
    environment={"XDG_STATE_HOME": sys.argv[1], "NANSCOPE_TOKEN": "token-for-tests"},
)
server.start()
print(server.page, server.ingest, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.mark.parametrize(
    ("limit", "part", "most"),
    [(64, 0.5, 16), (64, 0.25, 8), (16, 0.5, LEAST), (1024, 0.5, 496), (100_000, 0.5, 512)],
)
def test_connections_fit_the_files_that_may_be_open(
    limit: int, part: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert most_connections(512, part=part) == most


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ((64, 64), None),
        ((256, 100_000), WANTED),
        ((256, 4096), 4096),
        ((100_000, 100_000), None),
        ((256, resource.RLIM_INFINITY), WANTED),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_limit_is_raised_as_far_as_it_may(
    limits: tuple[int, int], wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: asked.append(both))
    raise_limit()
    assert asked == ([] if wanted is None else [(wanted, limits[1])])


def test_pages_are_served_beside_a_flood_where_64_files_may_be_open(tmp_path: Path) -> None:
    paths = os.pathsep.join(sys.path)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    held: list[socket.socket] = []
    try:
        assert server.stdout is not None
        page, ingest = server.stdout.readline().split()
        request = urllib.request.Request(f"{page}health", headers={"x-nanscope-token": "token-for-tests"})
        for port in (int(ingest.rpartition(":")[2]), int(page.rstrip("/").rpartition(":")[2])):
            held += [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(60)]
            time.sleep(0.5)
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert answer.status == 200
    finally:
        for connection in held:
            connection.close()
        server.communicate(timeout=30)
