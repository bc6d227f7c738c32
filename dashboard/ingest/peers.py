"""Who speaks to the ingest socket: who has said hello, and who has proved the secret. For `Collector`."""

from __future__ import annotations

import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from probe.wire import VERSION, Challenge, Hello, Proof, Refused, StreamKey, handshake_proof

from ..throttle import Throttle, is_loopback

MAX_PEERS: Final = 1024
_SILENT_S: Final = 60.0
"""A peer that says nothing for this long is forgotten; a helper speaks every second."""
_PROOF_S: Final = 5.0
"""A helper with the same secret has proved it by then; one with another leaves, and tries again in 2 s."""


@dataclass(slots=True)
class Peer:
    """What is known of one identity."""

    nonce: bytes
    """Ours, which the peer's proof must cover."""
    peer_nonce: bytes
    proved: bool = False
    heard: float = 0.0
    owed: dict[StreamKey, int] = field(default_factory=dict)
    """Streams to acknowledge after the next commit, and how far the store has taken each in."""
    takes_control: bool = False
    """Whether it understands requests to the trainers."""
    takes_watch: bool = False
    """Whether it understands which ranks are watched."""
    runs: set[str] = field(default_factory=set)
    """Runs whose streams it has named."""
    watches: dict[str, frozenset[int]] = field(default_factory=dict)
    """What it was told last of the ranks of a run."""


class Peers:
    """Peers by identity, the longest silent one first.

    Args:
        secret: What helpers must prove to know, and are given proof of.

    Attributes:
        known: Identity -> what is known of it.
        throttle: Of addresses that have tried wrong secrets, or unknown keys.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.throttle = Throttle()
        self.known: OrderedDict[bytes, Peer] = OrderedDict()
        self._left_at = -_SILENT_S
        """When it was last seen that somebody had said hello, and had left without a proof."""

    @property
    def knows_other_secret(self) -> bool:
        """Whether a helper has come within the last minute that knows another secret. Any thread."""
        return time.monotonic() - self._left_at < _SILENT_S

    def greet(self, identity: bytes, hello: Hello, address: str) -> Challenge | Refused:
        """Answer a hello: prove the secret, and have the peer prove it, or say why not."""
        wait_s = 0 if is_loopback(address) else self.throttle.wait_s(address)
        if wait_s:
            return Refused(reason=f"too many wrong secrets; try again in {wait_s} s")
        if hello.version != VERSION:
            reason = f"protocol version {hello.version}; this dashboard speaks {VERSION}"
            return Refused(reason=reason)
        nonce = os.urandom(32)
        oldest = time.monotonic() - _PROOF_S
        if any(not peer.proved and peer.heard < oldest for peer in self.known.values()):
            self._left_at = time.monotonic()
        self._make_room()
        self.known[identity] = Peer(
            nonce,
            hello.nonce,
            heard=time.monotonic(),
            takes_control=hello.takes_control,
            takes_watch=hello.takes_watch,
        )
        self.known.move_to_end(identity)
        proof = handshake_proof(self._secret, "collector", nonce, hello.nonce)
        return Challenge(version=VERSION, nonce=nonce, proof=proof, takes_detail=True)

    def check(self, identity: bytes, proof: Proof, address: str) -> Refused | None:
        """Take the proof of a peer that has said hello; None: it is right."""
        peer = self.known[identity]
        expected = handshake_proof(self._secret, "helper", peer.peer_nonce, peer.nonce)
        if not hmac.compare_digest(expected, proof.proof):
            self.throttle.note_failure(address)
            del self.known[identity]
            return Refused(reason="wrong ingest secret")
        peer.proved, peer.heard = True, time.monotonic()
        return None

    def note_heard(self, identity: bytes) -> None:
        """A peer has said something."""
        self.known[identity].heard = time.monotonic()
        self.known.move_to_end(identity)

    def helpers_of(self, run: str) -> Collection[bytes]:
        """Identities that have proved the secret, ship a run, and understand requests to its trainers."""
        return [
            identity
            for identity, peer in self.known.items()
            if peer.proved and peer.takes_control and run in peer.runs
        ]

    def proved(self) -> list[Peer]:
        """Forget peers that went silent; return those that have proved the secret."""
        oldest = time.monotonic() - _SILENT_S
        for identity in [key for key, peer in self.known.items() if peer.heard < oldest]:
            del self.known[identity]
        return [peer for peer in self.known.values() if peer.proved]

    def _make_room(self) -> None:
        """Forget the longest silent peer, strangers first, when there are too many."""
        if len(self.known) >= MAX_PEERS:
            stranger = next((key for key, peer in self.known.items() if not peer.proved), None)
            self.known.pop(next(iter(self.known)) if stranger is None else stranger)
