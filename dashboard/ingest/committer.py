"""Commits on a thread of its own: what arrives meanwhile is taken in, and pages show it. For `Collector`."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from probe.wire import StreamKey

from ..store.protocol import Store


@dataclass(frozen=True, slots=True)
class Committed:
    """What is durable after a commit."""

    moved: dict[StreamKey, int]
    """Next sequence numbers of what it has written; empty where it was put off, or nothing was queued."""
    reached: dict[StreamKey, int]
    """Those of the streams that were asked for."""


class Committer:
    """One commit at a time. `begin` and `take` are called on one thread.

    Args:
        store: whose queue is written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="nanscope-commit")
        self._running: Future[Committed] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a commit was begun whose result nobody has taken."""
        return self._running is not None

    def begin(self, keys: Collection[StreamKey]) -> None:
        """Begin a commit, and ask afterwards how far these streams are."""
        assert self._running is None
        self._running = self._worker.submit(self._commit, keys)

    def take(self, wait_s: float | None = 0.0) -> Committed | None:
        """Return what the commit that was begun has done; None while it is under way.

        Args:
            wait_s: waits so long; None: as long as it takes.

        Raises:
            DashboardError: the store has refused; everything stays queued.
        """
        if self._running is None or not wait([self._running], wait_s).done:
            return None
        done, self._running = self._running, None
        return done.result()

    def close(self) -> None:
        """End the thread; what it is at goes on to its end."""
        self._worker.shutdown(wait=self._running is None)

    def _commit(self, keys: Collection[StreamKey]) -> Committed:
        moved = self._store.commit()
        return Committed(moved, self._store.next_seqs(keys))
