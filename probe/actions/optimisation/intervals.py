"""Speed-ups of paired steps: their median, and an exact interval of it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.99
"""Of an interval, at least: four modes are compared, and one of a hundred comparisons may be wrong."""
FEWEST: Final = 8
"""Pairs that an interval of that confidence needs: 1 - 2 * 0.5**8 = 0.992."""


class Interval(NamedTuple):
    """A median and its interval."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the median, and between which two of the values it lies.

    The interval is that of order statistics (Conover, Practical Nonparametric Statistics, 3.2): the number of
    values below the true median is binomial with p = 0.5, whatever the distribution. So outliers, such as
    steps in which the machine did something else, do not widen it without end.

    Args:
        values: independent of each other.
        confidence: in which fraction (0-1) of cases it holds the true median, at least.

    Returns:
        None where there are too few values.
    """
    count, ordered = len(values), sorted(values)
    below, cut = 0.0, -1
    for at in range(count // 2):
        below += math.comb(count, at) / 2**count
        if 1 - 2 * below < confidence:
            break
        cut = at
    if cut < 0:
        return None
    return Interval(statistics.median(ordered), ordered[cut], ordered[count - 1 - cut])


def speedups(plain_s: Sequence[float], own_s: Sequence[float]) -> list[float]:
    """How often faster each step was than the plain one beside it in time."""
    return [plain / own for plain, own in zip(plain_s, own_s, strict=True)]
