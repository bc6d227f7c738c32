"""Requests to begin with, and any bytes as a request to a real server."""

from __future__ import annotations

import re
import socket

from api_server import BEARER, RUN

from dashboard.serving.server import Server

QUERIES = [
    "/api/v1/runs?limit=3&cursor=1.a", f"/api/v1/runs/{RUN}/series/values?name=loss&first=0&end=9&points=50",
    f"/api/v1/runs/{RUN}/heatmap?rank=0&statistic=grad_norm&columns=20", "/metrics", "/health",
    f"/api/v1/runs/{RUN}/events?kind=custom&severity=info&limit=5", f"/api/v1/runs/{RUN}/report?rank=0",
    f"/api/v1/runs/{RUN}/histograms?subject=a&first=1", f"/api/v1/runs/{RUN}/documents/profile?key=1&limit=2",
    f"/export/json?run={RUN}&first=0&end=3", f"/api/v1/runs/{RUN}/export?format=csv&track=loss",
    f"/api/v1/runs/{RUN}/profiles/1/trace", f"/api/v1/runs/{RUN}/notes", "/training-logs/debug/summary?run=x",
]  # fmt: skip


def ask_raw(server: Server, target: bytes) -> int | None:
    """Ask for any bytes; the status, None where the connection is closed without one."""
    host, _, port = server.page.removeprefix("http://").rstrip("/").partition(":")
    lines = [b"GET " + target + b" HTTP/1.1", f"host: {host}:{port}".encode(), b"connection: close"]
    lines += [f"{name}: {value}".encode() for name, value in BEARER.items()]
    answer = b""
    with socket.create_connection((host, int(port)), timeout=60) as stream:
        stream.sendall(b"\r\n".join([*lines, b"", b""]))
        try:
            while part := stream.recv(1 << 20):
                answer += part[: 100 - len(answer)] if len(answer) < 100 else b""
        except ConnectionResetError:
            pass
    found = re.match(rb"HTTP/1\.1 (\d\d\d)", answer)
    return None if found is None else int(found.group(1))
