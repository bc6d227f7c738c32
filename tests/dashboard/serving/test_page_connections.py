"""Connections to the page that say nothing, too much, or too slowly end; pages are served meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from api_server import BEARER, TOKEN, call, serving, session
from delivery_processes import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Origin

from dashboard.live import hub
from dashboard.serving import page_connections, security
from dashboard.serving.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("page-connections")
    with serving(folder) as started:
        for _ in range(2):  # threads that a page's first message starts, each
            with live(started) as feed:
                feed.send(json.dumps({"m": "subscribe", "id": 1}))
                feed.recv(timeout=20)
        yield started


def host_of(server: Server) -> str:
    return server.page.removeprefix("http://").rstrip("/")


def raw(server: Server) -> socket.socket:
    name, _, port = host_of(server).partition(":")
    return socket.create_connection((name, int(port)), timeout=30)


def ends(stream: socket.socket) -> bytes:
    """What comes before the server closes the connection; fails where it does not."""
    told = b""
    try:
        while part := stream.recv(65536):
            told += part
    except ConnectionResetError:
        pass
    return told


def assert_served(server: Server) -> None:
    assert call(server, "/health").status == 200


def head(server: Server, line: str, *more: str) -> bytes:
    named = [f"{name}: {value}" for name, value in BEARER.items()]
    return "\r\n".join([line, f"host: {host_of(server)}", *named, *more, "", ""]).encode()


def test_page_connection_that_says_nothing_is_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_connections, "HEAD_S", 0.05)
    with raw(server) as stream:
        assert ends(stream) == b""
    assert_served(server)


def test_page_connection_with_a_head_byte_by_byte_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_connections, "HEAD_S", 0.3)
    with raw(server) as stream, pytest.raises(OSError):
        stream.sendall(b"GET /health HTTP/1.1\r\n")
        while True:
            stream.sendall(b"x: y\r\n")
            assert_served(server)


def test_page_connection_slow_head_of_its_second_request_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_connections, "HEAD_S", 0.3)
    with raw(server) as stream:
        stream.sendall(head(server, "GET /health HTTP/1.1"))
        assert stream.recv(65536).startswith(b"HTTP/1.1 200")
        stream.sendall(b"GET /")
        assert b"HTTP/1.1" not in ends(stream)


def test_page_connection_with_an_endless_head_is_ended(server: Server) -> None:
    sent = 0
    with raw(server) as stream, pytest.raises(OSError):
        stream.sendall(b"GET / HTTP/1.1\r\n")
        while sent < 64 * 1024**2:
            stream.sendall(b"a: " + b"b" * 1000 + b"\r\n")
            sent += 1000
    assert_served(server)


def test_page_connection_body_that_does_not_come_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "BODY_S", 0.2)
    with raw(server) as stream:
        more = ("content-type: application/json", "content-length: 1000", "connection: close")
        stream.sendall(head(server, "POST /api/v1/runs/remove HTTP/1.1", *more) + b"{")
        assert ends(stream).startswith(b"HTTP/1.1 408")
    assert_served(server)


def test_page_connections_beyond_the_most_take_no_place_from_pages(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_connections, "MAX_CONNECTIONS", 10)
    streams = [raw(server) for _ in range(60)]
    for _ in range(5):
        assert_served(server)
    for stream in streams[:40]:
        assert ends(stream) == b""
    for stream in streams:
        stream.close()
    assert_served(server)


@pytest.mark.parametrize(
    "garbage", [b"\0" * 300, b"\xff\0\0\0\0\0\0\0\1\x7f", b"GET\r\n\r\n", b"\r\n" * 200, b""]
)
def test_page_connections_of_garbage_leave_nothing(
    server: Server, garbage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    process = psutil.Process()
    assert_served(server)
    before = process.num_fds()
    for _ in range(100):
        with raw(server) as stream:
            stream.sendall(garbage)
    assert_served(server)
    wait_until(lambda: process.num_fds() <= before + 2, "descriptors stay")
    assert len(capfd.readouterr().err.splitlines()) < 5


def live(server: Server) -> ClientConnection:
    headers = session(server, TOKEN)
    return connect_websocket(
        f"ws://{host_of(server)}/live",
        close_timeout=0.2,
        origin=Origin(headers["origin"]),
        additional_headers={"cookie": headers["cookie"]},
    )


def test_page_live_connection_outlives_the_clock_of_a_head(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_connections, "HEAD_S", 0.05)
    with live(server) as feed:
        with pytest.raises(TimeoutError):
            feed.recv(timeout=0.3)
        feed.send(json.dumps({"m": "subscribe", "id": 1}))
        assert feed.recv(timeout=20)


def test_page_live_connections_beyond_the_most_are_told_to_come_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_CLIENTS", 1)
    with live(server) as first, live(server) as second:
        with pytest.raises(ConnectionClosed, match="1013"):
            second.recv(timeout=20)
        first.send(json.dumps({"m": "subscribe", "id": 1}))
        assert first.recv(timeout=20)


def test_page_live_flood_is_slowed_and_others_are_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MESSAGES_S", 20)
    monkeypatch.setattr(hub, "BURST_MESSAGES", 20)
    heard = 0

    def count(message: object) -> None:
        nonlocal heard
        heard += 1

    monkeypatch.setattr(hub._Client, "_hear", lambda self, message: count(message))
    with live(server) as feed:
        for number in range(3000):
            feed.send(json.dumps({"m": "subscribe", "id": number}))
        for _ in range(20):
            assert_served(server)
    assert 0 < heard < 1000


@pytest.mark.parametrize(
    "text",
    ["{}", "[" * 60_000, '{"m":"subscribe"}', '{"m":"subscribe","id":1e400}',
     '{"m":"subscribe","id":-1}', "\ud7ff", "x" * 70_000,
     '{"m":"subscribe","id":1,"unfolded":[' + ",".join(['"a"'] * 300) + "]}"],
)  # fmt: skip
def test_page_live_message_beyond_a_limit_ends_that_connection_alone(server: Server, text: str) -> None:
    with live(server) as other, live(server) as feed:
        feed.send(text)
        with pytest.raises(ConnectionClosed):
            feed.recv(timeout=20)
        other.send(json.dumps({"m": "subscribe", "id": 1}))
        assert other.recv(timeout=20)
