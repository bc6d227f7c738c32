"""The slope of a scattered series that a few outliers do not move, with its interval. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_POINTS: Final = 250
"""Every pair of points is looked at: of more points an even choice is taken."""
_NORMAL: Final = 1.959963984540054
"""97.5 % quantile of the normal distribution."""

Floats = npt.NDArray[np.float64]


class Slope(NamedTuple):
    """In units of y for one of x."""

    value: float
    """Median of the slopes of all pairs."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    points: int
    """How many it is of."""
    span: float
    """From the first x to the last."""
    level: float
    """Median of y."""


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def robust_slope(x: Floats, y: Floats) -> Slope | None:
    """Return the Theil-Sen slope; None for less than four finite points with different x.

    The interval is that of Sen (1968, Estimates of the regression coefficient based on Kendall's tau): the
    slopes whose ranks lie z sqrt(n (n - 1) (2 n + 5) / 18) round the middle one, without ties. It takes the
    points' scatter for independent; memory that rises in jumps is less so than that.

    Args:
        x: (points,) places, ascending.
        y: (points,) values; those that are not finite are left out.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) > MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).round().astype(np.intp))
        x, y = x[chosen], y[chosen]
    count = len(x)
    if count < 4 or not x[-1] > x[0]:
        return None
    first, second = np.triu_indices(count, k=1)
    apart = x[second] - x[first]
    slopes = np.sort((y[second] - y[first])[apart > 0] / apart[apart > 0])
    half = _NORMAL * math.sqrt(count * (count - 1) * (2 * count + 5) / 18) / 2
    middle = (len(slopes) - 1) / 2
    low = slopes[max(0, math.floor(middle - half))]
    high = slopes[min(len(slopes) - 1, math.ceil(middle + half))]
    return Slope(
        float(np.median(slopes)),
        float(low),
        float(high),
        points=count,
        span=float(x[-1] - x[0]),
        level=float(np.median(y)),
    )
