"""Says whether what C has written into the ring may wait to be judged, by a glance at it.

A wake that judges costs about as much for one step as for ten: most of it is code that the training has
driven out of the caches. So steps of which the detectors will surely say nothing wait for others, up to a
second; what is not calm is judged at this wake, with all that waits. Used on the recorder's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from ..delivery.recorder.ring import Ring
from ..delivery.recorder.ring_format import Template
from ..detectors.calm import CalmLimits
from ..measure.kernels import calm_binding
from ..measure.kernels.calm_binding import CalmGlance

MOST_WAKES: Final = 3
"""At the fourth, all that waits is judged: a second after the first of it, where wakes are 0.25 s apart."""
MOST_STEPS: Final = 64
"""More do not wait: a step that goes the slow way has those before it taken out of the ring first."""
RENEWED_AFTER: Final = 256
"""Steps after which limits are gathered anew, which costs as much as to judge a step: medians move on."""
_LONGEST_PAUSE: Final = 8


class CalmSteps:
    """Follows one ring; every step of it is glanced at, one after the other."""

    def __init__(self) -> None:
        self._glance: CalmGlance | None = None
        self._next_byte = self._age = 0
        """Of the glance: total bytes up to what it has not seen, and steps that it has."""
        self._wakes = self._steps = 0
        """How long steps wait by now, and how many do."""
        self._pause = self._left = 0
        """For so many times none are gathered after limits were of no use, and how many are left of these."""

    def forget(self) -> None:
        """Nothing may wait until steps of C's are judged again: what is judged meanwhile is not seen here."""
        self._glance = None
        self._pause = self._left = 0

    def may_wait(self, ring: Ring) -> bool:
        """Look at what is new; whether it, and what has waited before, may wait for the next wake."""
        glance, counters = self._glance, ring.counters
        if glance is None:
            return False
        found = None
        # What was judged and has left the ring meanwhile lies there all the same, until it is written over.
        if counters.head - self._next_byte <= ring.capacity // 2:
            found = glance.steps_of(ring.address, self._next_byte, counters.head)
        if found is None:
            self._glance = None
            self._pause = min(2 * self._pause + (self._age < RENEWED_AFTER // 4), _LONGEST_PAUSE)
            self._left = self._pause
            return False
        self._next_byte = counters.head
        self._age, self._steps, self._wakes = self._age + found, self._steps + found, self._wakes + 1
        return self._wakes <= MOST_WAKES and self._steps <= MOST_STEPS

    def note_judged(
        self, limits: Callable[[], CalmLimits | None], template: Template, number: int, *, next_byte: int
    ) -> None:
        """All steps before `next_byte` were judged, and nothing goes on.

        Args:
            limits: gathers those that hold after them; None where nothing may wait.
            template: of the records that follow.
            number: of that template.
            next_byte: total bytes of the ring up to there.
        """
        self._wakes = self._steps = 0
        if self._glance is not None and self._age < RENEWED_AFTER:
            return
        if self._glance is not None:
            self._pause = 0
        elif self._left:
            self._left -= 1
            return
        found = limits()
        self._glance = None if found is None else glance_of(found, template, number)
        self._next_byte, self._age = next_byte, 0


def glance_of(limits: CalmLimits, template: Template, number: int) -> CalmGlance | None:
    """Put limits where C reads them; None where there is no C."""
    if not calm_binding.is_there():
        return None
    layers, heights = limits.layers, limits.heights
    numbers = {
        "loss_low": -math.inf,
        "loss_high": limits.loss,
        "rate_low": limits.rate,
        "expected": layers.expected,
        "common_low": layers.common_low,
        "common_high": layers.common_high,
    }
    return CalmGlance(
        number,
        sum(name == "lr" or name.startswith("lr/") for name in template.scalars),
        starts=layers.starts,
        layers=np.stack([layers.low, layers.high, layers.median, layers.mad]),
        numbers=numbers,
        heights=np.stack([heights.middle, heights.scale]),
        gate=heights.gate,
        newest=heights.newest,
    )
