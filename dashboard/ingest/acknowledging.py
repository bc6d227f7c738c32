"""When what helpers have sent is committed, and what each is told then. For `Collector`, on its thread."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from probe.wire import Ack, StreamKey

from ..errors import DashboardError
from ..store.protocol import Store
from .committer import Committer
from .peers import Peer

COMMIT_S: Final = 0.5
COMMIT_BYTES: Final = 8 * 1024**2
"""A transaction is made twice a second, or sooner when this much waits."""
_PUT_OFF_S: Final = 0.1
"""When a store is asked again that has put a commit off."""


class Acknowledging:
    """Has the store commit, and knows whom that is owed to.

    Args:
        store: What it has committed is acknowledged.
        peers: Identity -> peer; `Peer.owed` says what to acknowledge after the next commit.
    """

    def __init__(self, store: Store, peers: Mapping[bytes, Peer]) -> None:
        self._peers = peers
        self._committer = Committer(store)
        self._owed: dict[bytes, dict[StreamKey, int]] = {}
        """What the commit under way is to be acknowledged for, by identity; as of `Peer`."""
        self._queued_bytes = self._in_commit_bytes = 0
        self._is_put_off = False
        """The store has not written all yet that it was to write."""
        self._next_s = 0.0

    @property
    def is_full(self) -> bool:
        """Whether what arrives has to wait in its socket: until a commit begins, or one has gone on.

        A store takes no more than `MAX_QUEUED_BYTES`; what it does not take comes again only seconds later.
        """
        if not (self._committer.is_busy or self._is_put_off):
            return self._queued_bytes >= COMMIT_BYTES
        return self._queued_bytes + self._in_commit_bytes >= 3 * COMMIT_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether a commit is under way."""
        return self._committer.is_busy

    def note_queued(self, size: int) -> None:
        """The store was given so many bytes."""
        self._queued_bytes += size

    def hurry(self) -> None:
        """Somebody waits for an answer that only the next commit gives."""
        self._next_s = 0.0

    def clear(self) -> None:
        """The store has lost what was queued, or takes nothing: it is not full of it."""
        self._queued_bytes = self._in_commit_bytes = 0

    def is_due(self) -> bool:
        """Whether it is time to begin a commit; the next one is later then."""
        now = time.monotonic()
        is_much = self._queued_bytes >= COMMIT_BYTES and not self._is_put_off
        if now < self._next_s and not is_much:
            return False
        self._next_s = now + (_PUT_OFF_S if self._is_put_off else COMMIT_S)
        return True

    def begin(self) -> None:
        """Have what is queued made durable; what comes from now on is owed after the next commit."""
        self._owed = {identity: peer.owed for identity, peer in self._peers.items() if peer.owed}
        if not (self._owed or self._queued_bytes):
            return
        for peer in self._peers.values():
            peer.owed = {}
        self._in_commit_bytes, self._queued_bytes = self._queued_bytes, 0
        self._committer.begin({key for owed in self._owed.values() for key in owed})

    def take(self, wait_s: float | None = 0.0) -> list[tuple[bytes, Ack]] | None:
        """Return what to tell whom once the commit that was begun is done; None while it is under way.

        Args:
            wait_s: Waits so long; None: as long as it takes.

        Raises:
            DashboardError: The store has refused; everything stays queued, and is owed.
        """
        try:
            done = self._committer.take(wait_s)
        except DashboardError:
            self._owe_again((), {})
            raise
        if done is None:
            return None
        answers = [
            (identity, Ack(key=key, next_seq=done.reached[key]))
            for identity, owed in self._owed.items()
            for key in owed.keys() & done.reached.keys()
        ]
        # A store that spares its server commits later, and one of several servers may be away: what waits
        # there is owed until then.
        self._is_put_off = self._owe_again(done.moved, done.reached)
        if self._is_put_off and not done.moved:
            self._queued_bytes += self._in_commit_bytes
        self._in_commit_bytes = 0
        return answers

    def close(self) -> None:
        """End the thread of commits; what it is at goes on to its end."""
        self._committer.close()

    def _owe_again(self, moved: Collection[StreamKey], reached: Mapping[StreamKey, int]) -> bool:
        """Keep what is not durable yet for the next commit; whether the store has put any of it off.

        Streams of a server that is away are not reached, and wait for it as for any commit.
        """
        is_put_off = False
        for identity, owed in self._owed.items():
            peer = self._peers.get(identity)
            for key, taken in owed.items():
                if key in reached and (key in moved or taken <= reached[key]):
                    continue
                is_put_off |= key in reached
                if peer is not None:
                    peer.owed[key] = max(taken, peer.owed.get(key, 0))
        self._owed = {}
        return is_put_off
