"""The TCP connections of the ingest socket: how many there are, and how much each has sent.

ZeroMQ puts a message together before it hands it on, however many parts it has, and has no way to send a peer
away. So the kernel is asked how much has come in on a connection, and one that sends too much is shut down.
Used by the collector on its thread. A helper that is cut off connects again and goes on after its last ack.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zmq

from ..descriptors import most_connections

MAX_CONNECTIONS: Final = 1024
"""For one more the oldest is shut down that has not proved the secret; where there is none, itself."""
_PART: Final = 0.25
"""Of the files that may be open: pages come first."""
STRANGER_BYTES: Final = 256 * 1024
"""Of a connection that has not proved the secret: a handshake takes less than a kilobyte."""
STRANGER_S: Final = 20.0
"""So long a connection may be there without a proof; a helper proves it within 3 s, or connects again."""
WAITING_BYTES: Final = 128 * 1024 * 1024
"""Come in from a helper, and not yet taken: it sends 8 MiB a stream before it waits for an ack."""
MESSAGES_S: Final = 5_000
"""Messages of a helper in a second, on average; one that ships a backlog sends a few hundred."""
BURST_MESSAGES: Final = 10_000
_FRAME_BYTES: Final = 48
"""Of ZeroMQ around each part of a message, CURVE's box included."""
_BESIDE_S: Final = 64
"""Bytes a second that ZeroMQ's own signs of life may take."""
_LOOK_S: Final = 0.25
"""Between two looks at all connections; strangers are looked at each time."""
_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_MONITOR_EVENT: Final = struct.Struct("=HI")
_TCP_INFO_BYTES: Final = 136
_RECEIVED_AT: Final = 128
"""Where `tcpi_bytes_received` stands in `struct tcp_info` (linux/tcp.h)."""


@dataclass(slots=True)
class _Connection:
    """One that is open."""

    since: float
    is_proved: bool = False
    taken_bytes: int = 0
    """Of the messages that the collector has taken from it."""
    allowance: float = BURST_MESSAGES
    """Messages that may come at once."""
    counted_at: float = 0.0


class Connections:
    """Watches the connections of a bound socket, and ends those that go beyond a limit.

    Attributes:
        ended: how many it has shut down.
        reason: why the last of them.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket_: zmq.Socket[bytes]) -> None:
        """Watch a socket from before its `bind`."""
        self.ended = 0
        self.reason = ""
        self._known: dict[int, _Connection] = {}
        self._next_look = 0.0
        self._port = 0
        self._socket = socket_
        address = f"inproc://connections-{id(self)}"
        socket_.monitor(address, _EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        # ZeroMQ's own thread waits where there is no room.
        self._monitor.setsockopt(zmq.RCVHWM, 0)
        self._monitor.connect(address)

    def __len__(self) -> int:
        """Connections that are open."""
        return len(self._known)

    def begin(self, endpoint: str) -> None:
        """Say where the socket listens."""
        port = endpoint.rpartition(":")[2]
        self._port = int(port) if endpoint.startswith("tcp://") and port.isdecimal() else 0

    def close(self) -> None:
        """Watch no more; the socket is closed next."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def allows(self, number: int, parts: list[zmq.Frame]) -> bool:
        """Count a message that was taken; False ends its connection, and the message is not to be read.

        Args:
            number: descriptor that it came in on; one that is not known is allowed.
            parts: of the message, without the identity.
        """
        found = self._known.get(number)
        if found is None:
            return True
        now = time.monotonic()
        found.taken_bytes += sum(len(part) + _FRAME_BYTES for part in parts)
        found.allowance += min(now - found.counted_at, BURST_MESSAGES / MESSAGES_S) * MESSAGES_S - 1
        found.allowance = min(found.allowance, BURST_MESSAGES)
        found.counted_at = now
        if found.allowance >= 0:
            return True
        self._end(number, f"more than {MESSAGES_S:,} messages per second")
        return False

    def note_proof(self, number: int) -> None:
        """A connection has proved the secret."""
        if (found := self._known.get(number)) is not None:
            found.is_proved = True

    def end(self, number: int, reason: str) -> None:
        """Shut a connection down for a reason that only the collector knows."""
        if number in self._known:
            self._end(number, reason)

    def look(self) -> None:
        """Take note of who has come and gone, and end what goes beyond a limit."""
        self._hear()
        now = time.monotonic()
        is_full_look = now >= self._next_look
        if is_full_look:
            self._next_look = now + _LOOK_S
        for number, found in list(self._known.items()):
            if is_full_look or not found.is_proved:
                reason = self._beyond(number, found, now)
                if reason:
                    self._end(number, reason)

    def _hear(self) -> None:
        while True:
            try:
                event, number = _MONITOR_EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return
            if event != zmq.EVENT_ACCEPTED:
                self._known.pop(number, None)
                continue
            now = time.monotonic()
            self._known[number] = _Connection(since=now, counted_at=now)
            most = most_connections(MAX_CONNECTIONS, part=_PART)
            if len(self._known) > most:
                strangers = (one for one, found in self._known.items() if not found.is_proved)
                self._end(next(strangers, number), f"more than {most:,} connections at a time")

    def _beyond(self, number: int, found: _Connection, now: float) -> str:
        """Return which limit a connection has passed; "" while it has passed none."""
        if not found.is_proved and now - found.since > STRANGER_S:
            return f"{STRANGER_S:g} s without the ingest secret"
        received = self._received_bytes(number)
        if not found.is_proved:
            most = STRANGER_BYTES
            return f"more than {most // 1024} KiB without the ingest secret" if received > most else ""
        # What is counted for frames is the most that they take: nobody saves up room for later.
        found.taken_bytes = min(found.taken_bytes, received)
        if received - found.taken_bytes - _BESIDE_S * (now - found.since) > WAITING_BYTES:
            return f"more than {WAITING_BYTES // 1024**2} MiB sent ahead"
        return ""

    def _received_bytes(self, number: int) -> int:
        with self._own(number) as connection, contextlib.suppress(OSError):
            if connection is not None and sys.platform == "linux":
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                if len(info) >= _RECEIVED_AT + 8:
                    return int(struct.unpack_from("=Q", info, _RECEIVED_AT)[0])
        return 0

    def _end(self, number: int, reason: str) -> None:
        """ZeroMQ closes what is shut down, and forgets what had come of an unfinished message."""
        self._known.pop(number, None)
        self.ended += 1
        self.reason = reason
        with self._own(number) as connection, contextlib.suppress(OSError):
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _own(self, number: int) -> Iterator[socket.socket | None]:
        """Give a connection by its descriptor, which ZeroMQ may have closed; None where it is no more.

        The number may stand for something else by now: only what has our port is touched.
        """
        try:
            # Not a copy of the descriptor: where there are too many connections there is none to be had.
            connection = socket.socket(fileno=number)
        except OSError:
            yield None
            return
        try:
            try:
                is_ours = bool(self._port) and connection.getsockname()[1] == self._port
            except (OSError, IndexError, TypeError):
                is_ours = False
            yield connection if is_ours else None
        finally:
            connection.detach()
