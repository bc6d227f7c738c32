"""Follows how many small Python objects there are: dicts of numbers lie where malloc's figures do not reach.

Used by the leak watch on the training thread. Counting takes 0.04 to 0.15 ms, growing with the objects there
are; it is done for 1 % of the time at first, 0.01 % later.
"""

from __future__ import annotations

import sys
import time
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
_SUSPECT_SHARE: Final = 0.5
"""Of that, growth of all objects makes the watch look: some of what a container gets was there before."""
_FLOOR: Final = 16_000.0
"""Objects over a window of readings."""
_ENOUGH: Final = 2 * WINDOW
"""Readings that tell of growth, where there is any."""
_EARLY_SHARE: Final = 100
_EARLY_READINGS: Final = 256
_SHARE: Final = 10_000


class ObjectPacer(Pacer):
    """When objects are counted again."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = 0

    def note(self, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
        """They have been counted; see `Pacer.note`."""
        self._readings += 1
        share = _EARLY_SHARE if self._readings < _EARLY_READINGS else _SHARE
        self.next_ns = started_ns + share * max(took_ns, 1000)


class ObjectWatch:
    """Finds growth of the number of objects that goes on.

    Args:
        pacer: when they are counted.

    Attributes:
        growth: the newest verdict, in objects; kept until there are enough readings for another one.
    """

    def __init__(self, pacer: Pacer | None = None) -> None:
        self.growth: Growth | None = None
        self._pacer = pacer or ObjectPacer()
        self._detector = GrowthDetector(floor=_FLOOR)
        self._readings = 0
        """Since all was forgotten."""
        self._count = getattr(sys, "getallocatedblocks", None)

    @property
    def next_ns(self) -> float:
        """Earliest time of the next count, on the clock of `time.perf_counter_ns`."""
        return float("inf") if self._count is None else self._pacer.next_ns

    def read(self, step: int, started_ns: int) -> None:
        """Count the objects and judge."""
        cpu_ns = time.thread_time_ns()
        assert self._count is not None
        growth = self._detector.add(step, started_ns / 1e9, float(self._count()))
        self._readings += 1
        if growth is not None or self._readings >= _ENOUGH:
            self.growth = growth if growth is not None and _is_much(growth) else None
        self._pacer.note(started_ns, time.thread_time_ns() - cpu_ns)

    def forget(self) -> None:
        """Forget what was counted: a look at the heap has made and dropped many objects of its own."""
        self._detector.reset()
        self._readings = 0

    def supports(self, objects_per_step: float) -> bool:
        """Whether as many objects a step have come as something is said to get, by the newest verdict."""
        return self.growth is not None and self.growth.bytes_per_step >= _SUSPECT_SHARE * objects_per_step


def _is_much(growth: Growth) -> bool:
    return growth.keeps_pace and growth.bytes_per_step >= _SUSPECT_SHARE * LEAST_PER_STEP
