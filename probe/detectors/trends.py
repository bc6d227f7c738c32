"""A straight line through some readings, by least squares, with the interval of its slope. Pure.

Used by the memory calls and by the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

_NORMAL: Final = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
_FEW: Final = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
"""97.5 % quantiles of Student's t, for 1 to 20 degrees of freedom."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """y = `intercept` + `slope` x, fitted to `count` points."""

    slope: float
    intercept: float
    low: float | None
    """Lower end of the slope's 95 % interval; None for two points, through which a line goes exactly."""
    high: float | None
    """Upper end."""
    count: int

    @property
    def rises(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.low is not None and self.low > 0


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Fit a line by ordinary least squares; None for less than two different x, or a value that is no number.

    The interval is the usual one, slope +- t(n - 2) s / sqrt(sum (x - mean)^2), and takes the points'
    scatter round the line for independent; readings that follow each other closely are less so than that.

    Args:
        x: where the readings were taken.
        y: the readings, as many.
    """
    count = len(x)
    if count < 2 or not all(map(math.isfinite, (*x, *y))):
        return None
    middle_x, middle_y = math.fsum(x) / count, math.fsum(y) / count
    spread = math.fsum((one - middle_x) ** 2 for one in x)
    if not spread > 0:
        return None
    products = ((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    slope = math.fsum(products) / spread
    intercept = middle_y - slope * middle_x
    if count == 2:
        return Line(slope=slope, intercept=intercept, low=None, high=None, count=count)
    rest = math.fsum(((b - middle_y) - slope * (a - middle_x)) ** 2 for a, b in zip(x, y, strict=True))
    half = t_quantile(count - 2) * math.sqrt(rest / (count - 2) / spread)
    return Line(slope=slope, intercept=intercept, low=slope - half, high=slope + half, count=count)


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t: from a table, then by Fisher's expansion, to 1e-4.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if degrees <= len(_FEW):
        return _FEW[degrees - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
