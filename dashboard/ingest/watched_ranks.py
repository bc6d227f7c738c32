"""Ranks that somebody looks at: helpers that pool are asked to send those step by step.

Noted on the reader threads of pages, and by a store that several dashboards share; read on the collector's
thread.
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
        self._anywhere, self._here = _Looks(), _Looks()

    def note(self, run: str, rank: int) -> None:
        """A page has been shown a rank."""
        now = self._clock()
        with self._lock:
            self._anywhere.note(run, rank, now)
            self._here.note(run, rank, now)

    def note_elsewhere(self, run: str, rank: int, ago_s: float) -> None:
        """A page of another dashboard has been shown a rank, so many seconds ago."""
        with self._lock:
            self._anywhere.note(run, rank, self._clock() - ago_s)

    def here(self, within_s: float) -> list[tuple[str, int]]:
        """Run and rank of what this dashboard's own pages have been shown within so many seconds."""
        with self._lock:
            return self._here.all(self._clock() - within_s)

    def of(self, run: str) -> frozenset[int]:
        """The ranks of a run that are watched now, by pages of any dashboard."""
        with self._lock:
            return self._anywhere.of(run, self._clock() - WATCHED_S)


class _Looks:
    """When each rank of each run was looked at last."""

    def __init__(self) -> None:
        self._at: dict[str, dict[int, float]] = {}

    def note(self, run: str, rank: int, at: float) -> None:
        ranks = self._at.setdefault(run, {})
        ranks[rank] = max(at, ranks.pop(rank, at))
        if len(ranks) > MOST_RANKS:
            del ranks[min(ranks, key=ranks.__getitem__)]

    def of(self, run: str, oldest: float) -> frozenset[int]:
        ranks = self._at.get(run, {})
        for rank in [rank for rank, at in ranks.items() if at < oldest]:
            del ranks[rank]
        if not ranks:
            self._at.pop(run, None)
        return frozenset(ranks)

    def all(self, oldest: float) -> list[tuple[str, int]]:
        return [(run, rank) for run in list(self._at) for rank in sorted(self.of(run, oldest))]
