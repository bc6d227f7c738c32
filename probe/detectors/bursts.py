"""What tells a burst of gradients that is a run's own way from an explosion; for `gradients.py`.

Recurrent nets, rare classes and descents at the edge of stability burst by factors of ten as long as they
learn. The loss of the step and the run's earlier bursts say which is which.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import DetectorThresholds, Floats
from .baselines import TAIL, RowHistory

TAIL_FACTOR: Final = 1.5
"""An explosion is this many times further above the median, in natural-log units, than the highest 5 % of
healthy steps: MAD is blind to rare but regular bursts."""
ORDINARY_FACTOR: Final = 5.0
"""Where the loss is none of the highest 5 % of the recent ones, or no higher than at the start, an explosion
is this many times larger still: a hard batch, not a broken one, and no more than was survived before."""
LOSSES: Final = 64
START: Final = 10
"""First losses, whose median is where the run began."""


class BurstContext:
    """The recent losses, and what the norms of single layers are like at this moment."""

    def __init__(self, thresholds: DetectorThresholds) -> None:
        self._thresholds = thresholds
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._start: list[float] = []

    def learn(self, losses: Iterable[float | None]) -> None:
        """Add the losses of successive steps."""
        known = [loss for loss in losses if loss is not None]
        self._losses.extend(known)
        if len(self._start) < START:
            self._start += known[: START - len(self._start)]

    def surcharge(self, loss: float | None) -> float:
        """How much higher limits are for the loss of this step, in natural-log units."""
        known = sorted(self._losses)
        if loss is None or len(known) < self._thresholds.warmup_steps // 2:
            return 0.0
        usual = known[min(math.ceil(TAIL * len(known)), len(known) - 1)]
        return math.log(ORDINARY_FACTOR) if loss <= max(usual, median(self._start)) else 0.0

    def limits(self, loss: float | None, layers: RowHistory, rows: npt.NDArray[np.intp]) -> Floats:
        """Limits of some layers' log norms by what they are like now, and by their earlier bursts.

        The medians of `layers` may be some ten steps old. -inf where the loss leaves no doubt.
        """
        if self._is_off_the_scale(loss):
            return np.full(len(rows), -np.inf)
        options = self._thresholds
        middle, mad, tail = layers.now(rows)
        jump = np.maximum(options.explosion_mads * mad, math.log(options.explosion_factor))
        limits: Floats = middle + np.maximum(jump, TAIL_FACTOR * (tail - middle))
        return limits

    def _is_off_the_scale(self, loss: float | None) -> bool:
        """Whether a loss is further above all of the recent ones than these are apart."""
        if loss is None or len(self._losses) < self._thresholds.warmup_steps // 2:
            return False
        highest = max(self._losses)
        return loss - highest > highest - min(self._losses)
