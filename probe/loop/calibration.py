"""What the probe really adds to a step: now and then a step is left plain and compared with its neighbours.

The probe's own clock sees its calls, not the caches that they disturb nor the hooks' dispatch. Used by the
step tracker, on the training thread; it reads no clock and draws no random numbers.

Method: the blocked Wilcoxon rank-sum test of van Elteren (Bulletin of the International Statistical
Institute 37, 1960), inverted as in Hodges and Lehmann (Annals of Mathematical Statistics 34, 1963). A plain
step and its k neighbours make a block. If all k + 1 are exchangeable once the neighbours' log times are
lowered by d, then the number of them above the plain step is uniform on 0..k: mean k / 2, variance
k (k + 2) / 12. So the d that are not refuted at 5 % lie between two order statistics of all differences
within blocks. This needs no distribution: outliers, skew and slow drift (as many neighbours before as after)
do not spoil it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from ..detectors.medians import median_of

PLAIN_EVERY: Final = 200
"""One step in so many is left plain."""
NEIGHBOURS: Final = (-4, -3, -2, 2, 3, 4)
"""Steps that a plain one is compared with. Not the next ones: the plain step still writes the frame of the
one before, and the one after has none to write."""
_REACH: Final = max(NEIGHBOURS)
_PAUSE: Final = 5.0
"""A step longer than this many medians of its block had an evaluation or a checkpoint in it."""
_LEAST_NEIGHBOURS: Final = 2
_BLOCKS: Final = 500
"""Newest blocks that count: 100,000 steps."""
_LEAST_BLOCKS: Final = 5
_NORMAL_975: Final = 1.959964
"""97.5 % quantile of the normal distribution, for an interval of 95 %."""


class Calibration:
    """Says which steps are plain, and estimates the added step time from them.

    Args:
        limit: overhead limit as a fraction: the interval is given once its half width is narrower. With 0 no
            step is plain.
    """

    def __init__(self, limit: float) -> None:
        self.restart(limit)

    def restart(self, limit: float) -> None:
        """Forget everything: what is measured has changed, and with it what it costs."""
        self._limit = limit
        self._recent: deque[tuple[int, float, bool]] = deque(maxlen=2 * _REACH + 1)
        self._differences: deque[npt.NDArray[np.float64]] = deque(maxlen=_BLOCKS)
        self._estimate: tuple[float, float] | None = None
        self._is_stale = False

    def is_plain(self, step: int) -> bool:
        """Whether a step is to be left plain, only the tripwire kept; the same for every call of a step.

        One in each `PLAIN_EVERY` but the first, at a place that varies from one to the next in a fixed
        pattern, so that it does not keep time with anything periodic in the training.
        """
        if not self._limit:
            return False
        block, place = divmod(step, PLAIN_EVERY)
        return block > 0 and place == _place(block)

    def note(self, step: int, step_ns: int, *, is_ordinary: bool = True) -> None:
        """Take the duration of a finished step.

        Args:
            step: its number.
            step_ns: from the end of one update to the end of the next: it must hold all that is done for the
                step, and what is left out of a plain one.
            is_ordinary: False where a sampled feature was due or a replay was made.
        """
        recent = self._recent
        if recent and step != recent[-1][0] + 1:
            recent.clear()
        recent.append((step, float(step_ns), is_ordinary and step_ns > 0))
        if len(recent) == recent.maxlen and self.is_plain(recent[_REACH][0]):
            self._add_block()

    def interval(self) -> tuple[float, float] | None:
        """Return (centre, half width) of the 95 % interval of the added time, as fractions of a plain step.

        Steps on which a sampled feature is due take no part in it. None while the half width is not narrower
        than the limit.
        """
        if self._is_stale:
            self._is_stale = False
            self._estimate = _rank_interval(list(self._differences))
        if self._estimate is None or self._estimate[1] >= self._limit:
            return None
        return self._estimate

    def _add_block(self) -> None:
        """The step in the middle was plain: compare it with those around it."""
        middle = self._recent[_REACH]
        block = [self._recent[_REACH + offset] for offset in NEIGHBOURS]
        times = np.array([ns for _, ns, is_ordinary in (middle, *block) if is_ordinary])
        longest = _PAUSE * float(median_of(times)) if len(times) else 0.0
        if not middle[2] or middle[1] > longest:
            return
        neighbours = times[1:][times[1:] <= longest]
        if len(neighbours) >= _LEAST_NEIGHBOURS:
            self._differences.append(np.log(neighbours / middle[1]))
            self._is_stale = True


def describe(calls_fraction: float, interval: tuple[float, float] | None) -> str:
    """Write "probe 0.4 % (calls), step time +0.3 % +- 0.9"; the second part only where it is known.

    Args:
        calls_fraction: the probe's own time by its own clock, as a fraction of the step.
        interval: from `Calibration.interval`.
    """
    calls = f"probe {calls_fraction * 100:.1f} % (calls)"
    if interval is None:
        return calls
    centre, half_width = interval
    return f"{calls}, step time {centre * 100:+.1f} % +- {half_width * 100:.1f}"


def _place(block: int) -> int:
    """Where in a block of `PLAIN_EVERY` steps the plain one is, clear of both ends."""
    # Multiples of the golden section spread evenly and never repeat (Weyl's equidistribution theorem).
    spread = (block * 0.6180339887498949) % 1.0
    return _REACH + int(spread * (PLAIN_EVERY - 2 * _REACH))


def _rank_interval(blocks: list[npt.NDArray[np.float64]]) -> tuple[float, float] | None:
    """Return (centre, half width) of the 95 % interval of a shift, from its log differences within blocks."""
    if len(blocks) < _LEAST_BLOCKS:
        return None
    differences = np.sort(np.concatenate(blocks))
    variance = sum(len(block) * (len(block) + 2) / 12 for block in blocks)
    # Half a count for continuity: the number of neighbours above is whole.
    reach = _NORMAL_975 * math.sqrt(variance) + 0.5
    first = math.floor(len(differences) / 2 - reach)
    if first < 0:
        return None
    low, high = np.expm1(differences[first]), np.expm1(differences[-1 - first])
    return float(low + high) / 2, float(high - low) / 2
