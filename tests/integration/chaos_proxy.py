"""Two bad networks between helper and collector: one spoils the bytes of TCP, the other ZeroMQ's messages.

Each runs on a thread of its own and counts what it has done. `calm()` ends the faults, so that what was held
up can arrive.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq


class Network(threading.Thread):
    """What both have in common.

    Args:
        seed: of the faults.
        target: port of the collector; may be changed.
        share: how many of the chunks or messages are spoilt, 0 to 1.
    """

    def __init__(self, seed: int, target: int, *, share: float) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(seed)
        self.target, self.share = target, share
        self.done: Counter[str] = Counter()
        self.stopping = threading.Event()
        self.port = 0

    def calm(self) -> None:
        """Spoil nothing any more."""
        self.share = 0.0

    def stop(self) -> None:
        """End the thread."""
        self.stopping.set()
        self.join(20)

    def pick(self, faults: Sequence[str]) -> str:
        """Choose a fault, or none."""
        if self.chance.random() >= self.share:
            return ""
        fault = self.chance.choice(faults)
        self.done[fault] += 1
        return fault

    def flip(self, data: bytes) -> bytes:
        """Change one bit."""
        spoilt = bytearray(data)
        spoilt[self.chance.randrange(len(spoilt))] ^= 1 << self.chance.randrange(8)
        return bytes(spoilt)


class BadBytes(Network):
    """A TCP proxy that delays, cuts and corrupts."""

    def __init__(self, seed: int, target: int, *, share: float = 0.08) -> None:
        super().__init__(seed, target, share=share)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        while not self.stopping.is_set():
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    # Not closed by the one before it.
                    self._forward(key.fileobj, key.data)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.settimeout(5)
            self._selector.register(one, selectors.EVENT_READ, other)

    def _forward(self, source: Any, sink: socket.socket) -> None:
        try:
            data = source.recv(16_384)
            fault = self.pick(["cut", "delayed", "corrupted"]) if data else ""
            if not data or fault == "cut":
                self._close(source, sink)
                return
            if fault == "delayed":
                time.sleep(self.chance.uniform(0.01, 0.2))
            sink.sendall(self.flip(data) if fault == "corrupted" else data)
        except OSError:
            self._close(source, sink)

    def _close(self, *ends: socket.socket) -> None:
        for end in ends:
            self._selector.unregister(end)
            end.close()


@dataclass
class _Peer:
    """One connection of a helper, and ours to the collector in its name."""

    back: zmq.Socket[bytes]
    late: list[tuple[float, bool, bytes]] = field(default_factory=list)
    """(when, whether to the collector, message)."""
    last: bytes = b""


class BadMessages(Network):
    """A ZeroMQ proxy that loses, delays, duplicates, corrupts and repeats messages, in both directions.

    A delayed message comes after those that followed it; a repeated one is an older one of the same peer.
    """

    def __init__(
        self,
        seed: int,
        target: int,
        *,
        share: float = 0.05,
        faults: Sequence[str] = ("lost", "delayed", "duplicated", "corrupted", "repeated"),
    ) -> None:
        super().__init__(seed, target, share=share)
        self._faults = faults
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.setsockopt(zmq.LINGER, 0)
        self.port = self._front.bind_to_random_port("tcp://127.0.0.1")
        self._peers: dict[bytes, _Peer] = {}

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self.stopping.is_set():
            ready = dict(poller.poll(20))
            if self._front in ready:
                identity, message = self._front.recv_multipart()
                if identity not in self._peers:
                    self._peers[identity] = self._connect()
                    poller.register(self._peers[identity].back, zmq.POLLIN)
                self._pass(identity, message, to_collector=True)
            for identity, peer in self._peers.items():
                if peer.back in ready:
                    self._pass(identity, peer.back.recv(), to_collector=False)
            self._send_late()
        for peer in self._peers.values():
            peer.back.close(linger=0)
        self._front.close(linger=0)
        self._context.term()

    def _connect(self) -> _Peer:
        back = self._context.socket(zmq.DEALER)
        back.setsockopt(zmq.LINGER, 0)
        back.connect(f"tcp://127.0.0.1:{self.target}")
        return _Peer(back)

    def _pass(self, identity: bytes, message: bytes, *, to_collector: bool) -> None:
        peer, fault = self._peers[identity], self.pick(self._faults)
        if fault == "delayed":
            peer.late.append((time.monotonic() + self.chance.uniform(0.01, 0.5), to_collector, message))
        elif fault != "lost":
            again = {"duplicated": message, "repeated": peer.last}.get(fault, b"")
            self._send(identity, self.flip(message) if fault == "corrupted" else message, to_collector)
            if again:
                self._send(identity, again, to_collector)
        if to_collector:
            peer.last = message

    def _send(self, identity: bytes, message: bytes, to_collector: bool) -> None:
        if to_collector:
            self._peers[identity].back.send(message)
        else:
            self._front.send_multipart([identity, message])

    def _send_late(self) -> None:
        now = time.monotonic()
        for identity, peer in self._peers.items():
            due = [one for one in peer.late if one[0] <= now]
            peer.late = [one for one in peer.late if one[0] > now]
            for _, to_collector, message in due:
                self._send(identity, message, to_collector)
