"""How long the leak watch may hold training up: short slices, and a share of the time for all of them.

A slice is counted in CPU time of this thread: on an idle machine that is what training loses, and where
another process takes the processor it is the part that is ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SLICE_NS: Final = 2_000_000
"""What one slice takes, unless a single piece of it takes longer."""
_LATE_NS: Final = 3_000_000
"""When it drops what it has not come to: less than the 5 ms that no step may be held up by."""
_SHARE: Final = 75
"""Slices take one in so many nanoseconds: 1.3 %, so that one more at the wrong time leaves it under 2 %."""
_SAVED_NS: Final = 25_000_000
"""A long time without a look allows no more than so much at once: ten slices in as many steps."""
_LEAST_NS: Final = 1_000_000


class TimeSlice:
    """Some milliseconds of one step.

    Args:
        ns: how long it lasts.
        late_ns: after which nothing may be finished any more.
        clock_ns: counts what the slice takes.
    """

    def __init__(
        self,
        ns: int = _SLICE_NS,
        *,
        late_ns: int = _LATE_NS,
        clock_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._started_ns = clock_ns()
        self._end_ns = self._started_ns + ns
        self._late_ns = self._started_ns + max(ns, late_ns)

    def is_over(self) -> bool:
        """Whether the next piece has to wait for another slice."""
        return self._clock_ns() >= self._end_ns

    def is_late(self) -> bool:
        """Whether even what cannot wait has to be dropped."""
        return self._clock_ns() >= self._late_ns

    def spent_ns(self) -> int:
        """Return how long it has lasted by now."""
        return self._clock_ns() - self._started_ns


class LookBudget:
    """Says when there may be another slice, so that all of them together keep to their share of the time.

    Args:
        clock_ns: a clock that only goes forward.
        lived_ns: what the process has lived for already, to import torch say: a leak of a short run is found
            while it runs only when its first looks do not have to wait.
    """

    def __init__(self, *, clock_ns: Callable[[], int] = time.perf_counter_ns, lived_ns: int = 0) -> None:
        self._clock_ns = clock_ns
        self._seen_ns = clock_ns()
        self._credit_ns = min(max(lived_ns / _SHARE, float(_SLICE_NS)), float(_SAVED_NS))

    def allows(self) -> bool:
        """Whether so much time has passed since the last slices that there may be one now."""
        now_ns = self._clock_ns()
        self._credit_ns = min(self._credit_ns + (now_ns - self._seen_ns) / _SHARE, _SAVED_NS)
        self._seen_ns = now_ns
        return self._credit_ns >= _LEAST_NS

    def open_slice(self) -> TimeSlice:
        """Return a slice that begins now."""
        return TimeSlice()

    def note(self, spent_ns: int) -> None:
        """Take off what a slice has taken."""
        self._credit_ns -= spent_ns
