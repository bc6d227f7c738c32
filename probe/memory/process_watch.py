"""Follows the process's own pages: memory may grow that no allocator tells of.

Used by the leak watch on the training thread, at one place of a step. Read elsewhere, on the recorder's
thread say, pages rise and fall with a step's activations, and a step of nearly a second makes slow waves of
that, which look like growth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..detectors.memory import Growth, GrowthDetector, LeakJudge

_PERIOD_NS: Final = 10**9


class ProcessWatch:
    """Finds growth of one process that goes on, and says when that is a leak whatever it is.

    Args:
        read: reads the process's own resident bytes; None of them: not known.

    Attributes:
        own_bytes: newest reading.
        next_ns: earliest time of the next one.
    """

    def __init__(self, read: Callable[[], float | None]) -> None:
        self.own_bytes: float | None = None
        self.next_ns = 0
        self._read = read
        self._growth, self._judge = GrowthDetector(), LeakJudge()

    def follow(self, step: int, now_ns: int, *, or_else: float | None) -> Growth | None:
        """Read, once a second; return the growth that this reading completes.

        Args:
            step: number of the step that has just ended.
            now_ns: on a clock that only goes forward.
            or_else: bytes, where the process cannot be read.
        """
        if now_ns < self.next_ns:
            return None
        self.next_ns = now_ns + _PERIOD_NS
        self.own_bytes = own = self._read() or or_else
        return None if own is None else self._growth.add(step, now_ns / 1e9, own)

    def is_leak(self, growth: Growth, step: int, *, free_bytes: float | None) -> bool:
        """Judge the growth of this step's reading."""
        return self._judge.is_leak(growth, step=step, free_bytes=free_bytes)
