"""Who sends too much to the ingest socket, or says nothing, is cut off; the others are served."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
from delivery_processes import wait_until
from memory_store import MemoryStore
from test_collector import KEY, RECORDS, SECRET, Peer

from dashboard.ingest import collector as collecting
from dashboard.ingest import connections
from dashboard.ingest.collector import Collector
from probe.wire import (
    VERSION,
    Ack,
    Batch,
    Challenge,
    Hello,
    Message,
    Position,
    Proof,
    Refused,
    StreamKey,
    decode_message,
    encode,
    handshake_proof,
)

MIB = 1024**2


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector(MemoryStore(), endpoint="tcp://127.0.0.1:0", secret=SECRET, on_change=lambda: None)
    collector.start()
    yield collector
    collector.stop()


@pytest.fixture
def connect(collector: Collector) -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(collector.status.endpoint))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def helper(connect: Callable[[], Peer]) -> Peer:
    peer = connect()
    peer.shake_hands()
    assert_served(peer)
    return peer


def assert_served(helper: Peer) -> None:
    """A helper is answered, and on the connection that it has."""
    helper.say(Position(key=KEY))
    assert isinstance(helper.hear(), Ack)


def wait_for_end(collector: Collector, reason: str, count: int = 1) -> None:
    wait_until(lambda: collector.status.ended_connections >= count, f"nobody was cut off for {reason}")
    assert reason in collector.status.ended_reason


def raw(collector: Collector) -> socket.socket:
    """A connection that speaks no ZeroMQ."""
    port = int(collector.status.endpoint.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def greeted(collector: Collector) -> socket.socket:
    """A connection on which ZeroMQ's own handshake is over, without ZeroMQ."""
    stream = raw(collector)
    stream.sendall(b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\0" + b"NULL".ljust(20, b"\0") + b"\0" * 32)
    read_exactly(stream, 64)
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
    stream.sendall(bytes([4, len(ready)]) + ready)
    assert b"READY" in next_frame(stream)
    return stream


def read_exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        assert part, "the collector has closed the connection"
        data += part
    return data


def next_frame(stream: socket.socket) -> bytes:
    """The next small one that is no sign of life."""
    while True:
        _, size = read_exactly(stream, 2)
        data = read_exactly(stream, size)
        if not data.startswith((b"\x04PING", b"\x04PONG")):
            return data


def prove(stream: socket.socket) -> None:
    """Do a helper's handshake on such a connection."""
    nonce = b"n" * 32

    def say(message: Message) -> None:
        data = encode(message)
        stream.sendall(bytes([0, len(data)]) + data)

    say(Hello(version=VERSION, nonce=nonce))
    challenge = decode_message(next_frame(stream))
    assert isinstance(challenge, Challenge)
    say(Proof(proof=handshake_proof(SECRET, "helper", nonce, challenge.nonce)))


def test_connection_stranger_with_a_message_of_endless_parts_is_cut_off(
    collector: Collector, helper: Peer
) -> None:
    before = psutil.Process().memory_info().rss
    part = b"\x03" + (MIB).to_bytes(8, "big") + b"x" * MIB  # another part follows
    sent = 0
    with greeted(collector) as stream, pytest.raises(OSError):
        stream.settimeout(1.0)  # a sender whose window is closed is not told that nobody is there any more
        while sent < 4096:
            stream.sendall(part)
            sent += 1
    wait_for_end(collector, "256 KiB without the ingest secret")
    assert_served(helper)
    wait_until(lambda: psutil.Process().memory_info().rss - before < 128 * MIB, "the parts stay in memory")


def test_connection_stranger_that_says_nothing_is_cut_off(
    collector: Collector, helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with greeted(collector) as stream:
        monkeypatch.setattr(connections, "STRANGER_S", 0.0)
        while stream.recv(1024):
            pass
    wait_for_end(collector, "without the ingest secret")
    assert_served(helper)


def test_connection_stranger_may_say_hello_and_be_refused(connect: Callable[[], Peer]) -> None:
    stranger = connect()
    stranger.shake_hands(b"another secret")
    assert isinstance(stranger.hear(), Refused)


def test_connection_helper_that_sends_endless_parts_is_cut_off(
    collector: Collector, helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAITING_BYTES", 8 * MIB)
    # ZeroMQ itself sends nothing of a message before it has the last part.
    with greeted(collector) as wild, pytest.raises(OSError):
        prove(wild)
        wild.settimeout(1.0)
        wait_until(lambda: collector.status.helpers == 2, "the secret is not proved")
        for _ in range(4096):
            wild.sendall(b"\x03" + MIB.to_bytes(8, "big") + b"x" * MIB)
    wait_for_end(collector, "sent ahead")
    assert_served(helper)


def test_connection_helper_that_is_taken_from_may_send_any_amount(
    collector: Collector, helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WAITING_BYTES", 1 * MIB)
    for _ in range(40):
        helper.say(Batch(key=KEY, first_seq=0, records=[b"x" * (MIB // 4)]))
        assert_served(helper)  # an answer that waits for no commit
    assert collector.status.ended_connections == 0


def test_connection_flood_of_a_helper_is_cut_off_and_the_others_are_served(
    collector: Collector, connect: Callable[[], Peer], helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BURST_MESSAGES", 500)
    monkeypatch.setattr(connections, "MESSAGES_S", 100)
    wild = connect()
    wild.shake_hands()
    flood = encode(Batch(key=StreamKey(run="wild", writer="0-1", stream="metrics"), first_seq=7, records=[]))
    for number in range(5000):
        wild.socket.send(flood)
        # ZeroMQ does not see that a connection has ended while what came on it waits to be read.
        while wild.socket.poll(0):
            wild.socket.recv()
        if number % 500 == 0:
            assert_served(helper)
    wait_for_end(collector, "more than 100 messages per second")
    helper.say(Batch(key=KEY, first_seq=0, records=RECORDS))
    while helper.hear() != Ack(key=KEY, next_seq=len(RECORDS)):
        pass


def test_connection_helper_below_the_rate_is_left_alone(
    collector: Collector, helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BURST_MESSAGES", 50)
    monkeypatch.setattr(connections, "MESSAGES_S", 10**6)
    for _ in range(200):
        assert_served(helper)
    assert collector.status.ended_connections == 0


def test_connections_beyond_the_most_are_cut_off(
    collector: Collector, helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    streams = [raw(collector) for _ in range(40)]
    wait_for_end(collector, "connections at a time", 33)
    assert_served(helper)
    for stream in streams:
        stream.close()


def test_connection_helper_of_very_many_runs_is_refused(
    helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MAX_RUNS_OF_PEER", 3)
    answers = []
    for number in range(20):
        helper.say(Position(key=StreamKey(run=f"run-{number}", writer="0-1", stream="events")))
        answers.append(helper.hear())
    assert sum(isinstance(answer, Refused) for answer in answers) == 18  # one run is named already
    assert_served(helper)


def test_connection_helper_of_a_run_that_has_no_room_is_refused_with_the_reason(
    collector: Collector, helper: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "refuses", lambda self, key: "no room" if key.run == "late" else None)
    helper.say(Batch(key=StreamKey(run="late", writer="0-1", stream="events"), first_seq=0, records=[b""]))
    assert helper.hear() == Refused(reason="no room")
    assert_served(helper)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\xff" * 64, b""])
def test_connections_of_garbage_leave_nothing(collector: Collector, helper: Peer, garbage: bytes) -> None:
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(100):
        with raw(collector) as stream:
            stream.sendall(garbage)
    wait_until(lambda: process.num_fds() <= before + 4, "descriptors stay")
    assert len(collector._connections) <= 8
    assert_served(helper)


def test_connections_stop_while_strangers_come(collector: Collector) -> None:
    stopping = threading.Event()

    def knock() -> None:
        while not stopping.is_set():
            try:
                raw(collector).close()
            except OSError:
                return

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        collector.stop()
        assert collector._thread is not None
        assert not collector._thread.is_alive()
    finally:
        stopping.set()
        thread.join(30)


def test_connection_hello_of_many_identities_takes_no_memory(
    collector: Collector, connect: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.ingest.peers.MAX_PEERS", 16)
    stranger = connect()
    for _ in range(100):
        stranger.say(Hello(version=VERSION, nonce=os.urandom(32)))
        stranger.hear()
    assert len(collector._peers.known) <= 16
