"""A loss that grows by as many percent in each part of a stretch as in the part before: it will overflow.

What grows more slowly from part to part levels off, as the losses of a GAN or of values that spread do.
Used by `high_loss.py`, which has the loss divided by the size of the step. Losses may be 0 or negative.
"""

from __future__ import annotations

import math
from collections import deque
from copy import copy
from typing import Final, NamedTuple

import numpy as np

from .base import Floats
from .loss import ROUNDING
from .medians import median_of

BLOCK: Final = 8
"""Losses whose median is judged."""
KEPT: Final = 64
"""Blocks that are kept: 512 losses."""
LEAST: Final = 5
"""Blocks of a stretch."""
TIMES: Final = 4.0
"""Times the level at which the stretch began ..."""
NOISE: Final = 3.0
"""... which counts as at least so many MADs of the losses there."""
FASTER: Final = 1.2
"""Each third of the stretch adds so many times as much as the one before: at 4 times a steady growth makes
it 1.6 times."""
RISING_PAIRS: Final = 0.85
"""Of all pairs of its blocks, so many have the later one higher."""
NEAR: Final = 2.0
"""A stretch begins with the last block that is no more MADs above the lowest one, ..."""
NEAR_SHARE: Final = 0.05
"""... or no larger share of it."""
GRADIENT: Final = 0.5
"""The squared gradient has grown by so much of the growth of the loss, where it is known: that of a squared
error grows as the error does."""


class Growth(NamedTuple):
    """A stretch of such growth."""

    step: int
    """At which it began."""
    start: float
    """Level there."""
    level: float
    """Now."""
    limit: float
    """A loss below it has come down again."""


class _Block(NamedTuple):
    step: int
    loss: float
    noise: float
    """MAD of its losses."""
    gradient: float
    """Median norm of the whole gradient; NaN where it is not known."""


class SteadyGrowth:
    """Follows the losses of one run."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._gradients: list[float] = []
        self._blocks: deque[_Block] = deque(maxlen=KEPT)
        self._highest = -math.inf

    def __copy__(self) -> SteadyGrowth:
        other = SteadyGrowth()
        other._losses, other._gradients = self._losses.copy(), self._gradients.copy()
        other._blocks, other._highest = copy(self._blocks), self._highest
        return other

    def add(self, step: int, loss: float, gradient: float | None) -> Growth | None:
        """Take the loss of a step; returns the growth that it completes, if the loss is above all before.

        Args:
            step: its number.
            loss: finite.
            gradient: norm of the whole gradient; None where it is not known.
        """
        self._losses.append(loss)
        if gradient is not None and math.isfinite(gradient):
            self._gradients.append(gradient)
        if len(self._losses) < BLOCK:
            return None
        middle = _middle(self._losses)
        noise = _middle([abs(value - middle) for value in self._losses])
        gradient = _middle(self._gradients) if self._gradients else math.nan
        self._losses, self._gradients = [], []
        self._blocks.append(_Block(step, middle, noise, gradient))
        is_highest, self._highest = middle > self._highest, max(middle, self._highest)
        return self._judge() if is_highest else None

    def _judge(self) -> Growth | None:
        losses = np.array([block.loss for block in self._blocks])
        lowest = self._blocks[int(losses.argmin())]
        near = lowest.loss + max(NEAR * lowest.noise, NEAR_SHARE * abs(lowest.loss))
        begin = int(np.flatnonzero(losses <= near)[-1])
        stretch, start = losses[begin:], self._blocks[begin]
        level = max(abs(start.loss), NOISE * start.noise)
        if losses.min() < 0.0:
            # What crosses 0 has no level but its own reach; noise of a loss that is 0 has none.
            level = max(level, float(np.abs(losses[: begin + 1]).max()))
            if level < ROUNDING:
                return None
        rise = float(stretch[-1]) - start.loss
        if len(stretch) < LEAST or level == 0.0 or rise < (TIMES - 1.0) * level:
            return None
        if not (_is_steady(stretch) and self._has_gradient(begin, 1.0 + rise / level)):
            return None
        return Growth(start.step, start.loss, float(stretch[-1]), start.loss + (TIMES - 1.0) * level)

    def _has_gradient(self, begin: int, growth: float) -> bool:
        """Whether the gradient has grown with the loss, or is not known."""
        known = [block.gradient for block in list(self._blocks)[begin:] if math.isfinite(block.gradient)]
        if len(known) < LEAST - 1 or not (before := _middle(known[:2])) > 0.0:
            return True
        return (_middle(known[-2:]) / before) ** 2 >= GRADIENT * growth


def _middle(values: list[float]) -> float:
    return float(median_of(values))


def _is_steady(levels: Floats) -> bool:
    """Whether these rise, and by more in each third than in the one before."""
    third = len(levels) // 3
    inner = [median_of(levels[at - 1 : at + 2]) for at in (third, 2 * third)]
    first, second, last = np.diff([levels[0], *inner, median_of(levels[-2:])])
    if not (second > max(FASTER * first, 0.0) and last > FASTER * second):
        return False
    later = np.triu(levels[None, :] > levels[:, None], 1)
    return bool(later.sum() >= RISING_PAIRS * len(levels) * (len(levels) - 1) / 2.0)
