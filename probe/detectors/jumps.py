"""Lasting jumps that are too small for an alarm: a suspicion, which brings a closer look and no event.

Given how far each series stands above its own recent median, in MADs (`heights.py`): the loss, the norm of
the whole gradient and those of the layers. Called by `jump_watch.py` on the training thread.

One value says little: of Student's t with three degrees of freedom one in 200 stands eight MADs out. Five in
a row say a lot, and two statistics of them share the work. Where noise is symmetric, the sum of the five,
each counted from 0 to 8 MADs, is about the best: for Laplace noise it is the likelihood ratio of a step of
eight MADs (Neyman & Pearson, Phil. Trans. A 231, 1933). Where it is skewed, as log-normal noise is, the
lowest of the five tells more. The limits of both follow the tails that the series itself has shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .base import Floats
from .medians import median_of

LASTING: Final = 5
"""Values that are judged together."""
CAP: Final = 8.0
"""MADs beyond which a value counts no more in the sum: the size of the step that is to be found."""
BLOCK: Final = 64
"""Values of which the second and the sixth highest are kept, as the tails of a series."""
MEMORY: Final = 16
"""Blocks that these are averaged over, about ..."""
EVERY_BLOCK: Final = 8
SOME_BLOCKS: Final = 4
"""... of the first ones every one, then every fourth: 4,000 steps."""
FEWEST: Final = 56
"""Values that a block must have for its series to be judged after it."""
PRIOR: Final = (4.6, 3.5)
"""What counts as the block before the first: a little more than Laplace noise has."""
TAIL_CAP: Final = 20.0
"""MADs; one block of a spike that lasts is not to raise the limits for good."""
SUM_LIMIT, SUM_TAILS, SUM_ROWS = 24.0, 4.9, 0.4
"""The sum is above this, and above so many times the second highest of a block; more for each e-fold of
layers, about what an exponential tail takes for as many more chances. Found by simulation of normal, Laplace,
t(3) and log-normal noise: of one series of it at most one value in 40,000 is a suspicion (docs/detectors.md).
"""
LOW_LIMIT, LOW_TAILS, LOW_ROWS = 4.0, 0.9, 0.1
"""The same of the lowest of the five and the sixth highest of a block."""
STAYING: Final = 2.0
"""MADs above which four of the five must be: three outliers have not stayed."""
BEFORE: Final = 16
"""Values before the five, which must be less than half as high: a slow rise is no jump."""
BEHIND: Final = BEFORE + LASTING - 1
"""Values of the block before that the first of a block is judged with."""
DRIFT: Final = 0.5
"""MADs by which the median of these may lie above that of the series by chance; what is more is taken off."""
_SORTED_TOGETHER: Final = 256
"""Series whose block is sorted at once: 64 KiB, which caches hold."""
_HIGHEST: Final = 1e30
"""MADs; single precision ends at 3e38."""
_ROUNDING: Final = 1e-4
"""More than five heights lose that are kept in single precision."""
SILENT: Final = 128
"""Steps after a jump until its series is judged again: medians have followed by then."""


class Jump(NamedTuple):
    """A series that has gone up and stayed there."""

    step: int
    """The first that is high."""
    found: int
    """The step at which there were enough of them."""
    series: int
    """Column of what was judged."""
    mads: float
    """Median of the five values above the median of before, in MADs."""


class JumpDetector:
    """Finds lasting jumps in many series at once; limits and state of each are its own."""

    def __init__(self) -> None:
        self.clear()

    def judge(self, steps: Sequence[int], heights: Floats, families: Floats) -> list[Jump]:
        """Return what has jumped at these steps.

        Args:
            steps: numbers of successive steps.
            heights: (steps, series), MADs above the median; NaN where not known.
            families: (series,), how many series each is judged together with.
        """
        if heights.shape[1] != len(self._gate):
            self._begin(families)
        found, start = [], 0
        while start < len(heights):
            stop = min(start + BLOCK - self._filled, len(heights))
            found += self._judge_part(steps[start:stop], heights[start:stop])
            start = stop
            if self._filled == BLOCK:
                self._learn_block()
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._begin(np.zeros(0))

    def _begin(self, families: Floats) -> None:
        series = len(families)
        self._sum_factor = SUM_TAILS + SUM_ROWS * np.log(families)
        self._low_factor = LOW_TAILS + LOW_ROWS * np.log(families)
        self._kept = np.full((BEHIND + BLOCK, series), np.nan, dtype=np.float32)
        """The last heights of the block before, and those of the one under way."""
        self._filled = self._clock = self._blocks_seen = 0
        self._all = np.ones(series, dtype=np.bool_)
        self._lowest = np.full(series, np.inf)
        self._steps: deque[int] = deque([-1] * LASTING, maxlen=LASTING)
        self._tails: Floats = np.repeat(np.array(PRIOR)[:, None], series, axis=1)
        """(2, series): second and sixth highest of a block."""
        self._blocks: Floats = np.ones(series)
        self._sum_limit = np.full(series, np.inf)
        self._low_limit = np.full(series, np.inf)
        self._gate = np.full(series, np.inf)
        """No sum below it can be a jump."""
        self._silent_until = np.zeros(series, dtype=np.int64)

    def _judge_part(self, steps: Sequence[int], heights: Floats) -> list[Jump]:
        """Judge steps of one block."""
        first = BEHIND + self._filled
        kept = self._kept[first : first + len(heights)]
        np.clip(heights, -_HIGHEST, _HIGHEST, out=kept, casting="same_kind")
        capped = np.minimum(self._kept[first - LASTING + 1 : first + len(heights)], CAP)
        np.maximum(capped, 0.0, out=capped)
        count = len(heights)
        pairs = capped[:-1] + capped[1:]
        is_high = pairs[:count] + pairs[2 : count + 2] + capped[LASTING - 1 :] > self._gate
        found = []
        if is_high.any():
            for index, series in np.argwhere(is_high).tolist():
                jump = self._confirm(first + index, series, steps, index)
                if jump is not None:
                    found.append(jump)
        self._filled += count
        self._clock += count
        self._steps.extend(steps[-LASTING:])
        return found

    def _confirm(self, row: int, series: int, steps: Sequence[int], index: int) -> Jump | None:
        """Look closely at the five values up to a row of what is kept."""
        if self._clock + index < self._silent_until[series]:
            return None
        values = self._kept[: row + 1, series].astype(np.float64)
        five, before = values[-LASTING:], values[-LASTING - BEFORE : -LASTING]
        known = before[~np.isnan(before)]
        if len(known) < BEFORE // 2:
            return None
        level, rise = float(median_of(five)), max(float(median_of(known)), 0.0)
        risen = five - max(rise - DRIFT, 0.0)
        total = float(np.clip(risen, 0.0, CAP).sum())
        if not (total > self._sum_limit[series] or risen.min() > self._low_limit[series]):
            return None
        if rise > level / 2.0 or np.count_nonzero(risen > STAYING) < LASTING - 1:
            return None
        self._silent_until[series] = self._clock + index + SILENT
        behind = LASTING - 1 - int(np.argmax(five > level / 2.0))
        numbers = [*self._steps, *steps[: index + 1]]
        return Jump(numbers[-1 - behind], numbers[-1], series, level)

    def _learn_block(self) -> None:
        """Take the tails of a full block, and set the limits for the next.

        After the first few blocks only some are taken: limits change little by then, and sorting costs.
        """
        self._blocks_seen += 1
        block = self._kept[BEHIND:]
        missing = np.isnan(block)
        is_dense = BLOCK - missing.sum(axis=0) >= FEWEST if missing.any() else self._all
        if self._blocks_seen <= EVERY_BLOCK or self._blocks_seen % SOME_BLOCKS == 0:
            self._learn_tails(block, is_dense)
        self._gate = self._lowest if is_dense is self._all else np.where(is_dense, self._lowest, np.inf)
        self._kept[:BEHIND] = block[-BEHIND:]
        self._filled = 0

    def _learn_tails(self, block: npt.NDArray[np.float32], is_dense: npt.NDArray[np.bool_]) -> None:
        tails = np.empty((2, block.shape[1]))
        for start in range(0, block.shape[1], _SORTED_TOGETHER):
            part = slice(start, start + _SORTED_TOGETHER)
            tails[:, part] = _highest(block[:, part], is_full=is_dense is self._all)
        learns = is_dense & (self._silent_until <= self._clock)
        np.minimum(tails, TAIL_CAP, out=tails)
        np.maximum(tails, 0.0, out=tails)
        self._blocks = np.minimum(self._blocks + learns, MEMORY)
        self._tails += np.where(learns, (tails - self._tails) / self._blocks, 0.0)
        self._sum_limit = np.maximum(SUM_LIMIT, self._sum_factor * self._tails[0])
        self._low_limit = np.maximum(LOW_LIMIT, self._low_factor * self._tails[1])
        self._lowest = np.minimum(self._sum_limit, LASTING * np.minimum(self._low_limit, CAP)) - _ROUNDING


def _highest(block: npt.NDArray[np.float32], *, is_full: bool) -> npt.NDArray[np.float32]:
    """Return the second and the sixth highest of each column, (2, series)."""
    ordered = np.sort(block, axis=0)
    if is_full:
        return ordered[[-2, -6]]
    known = len(ordered) - np.isnan(ordered).sum(axis=0)  # NaN come last
    return np.take_along_axis(ordered, np.maximum(known, 6) - np.array([[2], [6]]), axis=0)
