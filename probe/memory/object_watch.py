"""Follows how many small Python objects there are: dicts of numbers lie where malloc's figures do not reach.

Used by the leak watch on the training thread. Counting takes 0.04 to 0.4 ms, growing with the objects there
are; it is done for 1 % of the time at first and where they become more, then for 0.1 %, and 0.01 % later.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Final

from ..detectors.memory import WINDOW, Growth, GrowthDetector
from .heap_meter import Pacer

LEAST_PER_STEP: Final = 1000.0
"""Objects that a container without tensors gets in a step before it is a leak: metrics, losses and norms of
each layer, kept as a history, are some hundred. A thousand objects are 24 to 100 kB: 10,000 steps of them
fill a gigabyte."""
LEAST_BYTES_PER_STEP: Final = 24_000.0
"""The same of few objects that are large, such as texts and bytes: what a thousand numbers take. They are
8 MiB after 350 steps, a gigabyte after 45,000."""
ASKED_BYTES: Final = 256.0 * 2**20
"""A container of plain objects that the script asks (`if key not in memo`) is no leak until it holds so much:
a cache of what comes again is full at the end of an epoch, a memo of keys that never do holds all of them."""
_SUSPECT_SHARE: Final = 0.5
"""Of that, growth of all objects makes the watch look: some of what a container gets was there before."""
_FLOOR: Final = 16_000.0
"""Objects over a window of readings."""
_ENOUGH: Final = 2 * WINDOW
"""Readings that tell of growth, where there is any."""
_FIRST_SHARE: Final = 100
"""Counting takes one in so many nanoseconds in the first `_ENOUGH` readings, which show what a loop keeps
from its beginning, and in early ones as long as there are more and more objects ..."""
_EARLY_SHARE: Final = 1000
_EARLY_READINGS: Final = 256
_RISING_READINGS: Final = 4
"""... so many readings after each that had so many objects as never before."""
_SHARE: Final = 10_000


class ObjectPacer(Pacer):
    """When objects are counted again."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = self._hurried = 0

    def note(self, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
        """They have been counted; see `Pacer.note`."""
        self._readings += 1
        self._hurried = _RISING_READINGS if is_rising else max(self._hurried - 1, 0)
        is_early = self._readings < _EARLY_READINGS
        if self._readings < _ENOUGH or (is_early and self._hurried):
            share = _FIRST_SHARE
        else:
            share = _EARLY_SHARE if is_early or self._hurried else _SHARE
        self.next_ns = started_ns + share * max(took_ns, 1000)


class ObjectWatch:
    """Finds growth of the number of objects that goes on.

    Args:
        pacer: when they are counted.
        count: counts them; else Python does, where it can.

    Attributes:
        growth: the newest verdict, in objects; kept until there are enough readings for another one.
    """

    def __init__(
        self,
        pacer: Pacer | None = None,
        *,
        count: Callable[[], int] | None = None,
    ) -> None:
        self.growth: Growth | None = None
        self._pacer = pacer or ObjectPacer()
        self._detector = GrowthDetector(floor=_FLOOR)
        self._readings = 0
        """Since all was forgotten."""
        self._newest_step, self._highest = 0, math.inf
        self._mark: tuple[int, float] | None = None
        self._since_mark = 0.0
        """Objects a step, from the mark to the newest comparison."""
        self._count = count or getattr(sys, "getallocatedblocks", None)

    @property
    def has_verdict(self) -> bool:
        """Whether there were enough counts to say whether there are more and more objects."""
        return self._count is None or self._readings >= _ENOUGH or self.growth is not None

    @property
    def next_ns(self) -> float:
        """Earliest time of the next count, on the clock of `time.perf_counter_ns`."""
        return float("inf") if self._count is None else self._pacer.next_ns

    def read(self, step: int, started_ns: int) -> None:
        """Count the objects and judge."""
        cpu_ns = time.thread_time_ns()
        assert self._count is not None
        count = float(self._count())
        growth = self._detector.add(step, started_ns / 1e9, count)
        self._readings += 1
        if growth is not None or self._readings >= _ENOUGH:
            self.growth = growth if growth is not None and _is_much(growth) else None
        took_ns = time.thread_time_ns() - cpu_ns
        self._pacer.note(started_ns, took_ns, is_rising=self._is_rising(step, count))

    def _is_rising(self, step: int, count: float) -> bool:
        """Whether there are so many more than ever before as a container that is a leak makes them."""
        more, steps = count - self._highest, max(step - self._newest_step, 1)
        self._highest = count if self._highest == math.inf else max(self._highest, count)
        self._newest_step = step
        return more >= _SUSPECT_SHARE * LEAST_PER_STEP * steps

    def forget(self) -> None:
        """Forget what was counted: a look at the heap has made and dropped many objects of its own."""
        self._detector.reset()
        self._readings, self._mark = 0, None

    def mark(self, step: int) -> None:
        """Note how many objects there are as a series of looks begins."""
        if self._count is not None:
            self._mark = step, float(self._count())

    def compare(self, step: int, own: int) -> None:
        """Note how many have come since the mark: where looks take long, there are few readings to judge by.

        Args:
            step: after the marked one.
            own: about how many of them are the looks'.
        """
        if self._count is not None and self._mark is not None and step > self._mark[0]:
            marked_step, marked = self._mark
            self._since_mark = (self._count() - own - marked) / (step - marked_step)

    def supports(self, objects_per_step: float) -> bool:
        """Whether as many objects a step have come as something is said to get, as far as is known."""
        known = 0.0 if self.growth is None else self.growth.bytes_per_step
        return max(known, self._since_mark) >= _SUSPECT_SHARE * objects_per_step


def _is_much(growth: Growth) -> bool:
    return growth.keeps_pace and growth.bytes_per_step >= _SUSPECT_SHARE * LEAST_PER_STEP
