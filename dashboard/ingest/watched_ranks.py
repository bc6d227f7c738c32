"""Ranks that somebody looks at: helpers that pool are asked to send those step by step.

Noted on the reader threads of pages, read on the collector's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

WATCHED_S: Final = 120.0
"""A rank counts as watched for so long after a page has shown it last."""
MOST_RANKS: Final = 64
"""Of one run; the one that was looked at longest ago is watched no more."""


class WatchedRanks:
    """What open pages show of running trainings. Every method may be called on any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at: dict[str, dict[int, float]] = {}

    def note(self, run: str, rank: int) -> None:
        """A page has been shown a rank."""
        now = self._clock()
        with self._lock:
            ranks = self._looked_at.setdefault(run, {})
            ranks.pop(rank, None)
            ranks[rank] = now
            if len(ranks) > MOST_RANKS:
                del ranks[next(iter(ranks))]

    def of(self, run: str) -> frozenset[int]:
        """The ranks of a run that are watched now."""
        oldest = self._clock() - WATCHED_S
        with self._lock:
            ranks = self._looked_at.get(run, {})
            for rank in [rank for rank, at in ranks.items() if at < oldest]:
                del ranks[rank]
            if not ranks:
                self._looked_at.pop(run, None)
            return frozenset(ranks)
