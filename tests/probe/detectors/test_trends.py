"""A line by least squares and the interval of its slope, against numpy and tables of Student's t."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.detectors.trends import fit_line, t_quantile


@pytest.mark.parametrize("count", [3, 7, 40])
def test_line_is_that_of_numpy(count: int) -> None:
    random = np.random.default_rng(count)
    x = np.cumsum(random.uniform(0.5, 2.0, count)) + 1e6
    y = 3e9 + 2e5 * x + random.normal(0, 1e6, count)
    line = fit_line(x.tolist(), y.tolist())
    assert line is not None and line.low is not None and line.high is not None
    # Centred, for numpy's own way loses digits at 1e6.
    (slope, _), covariance = np.polyfit(x - x.mean(), y, 1, cov=True)
    assert line.slope == pytest.approx(slope, rel=1e-9)
    assert line.intercept + line.slope * x.mean() == pytest.approx(y.mean(), rel=1e-12)
    half = t_quantile(count - 2) * math.sqrt(covariance[0, 0])
    assert line.high - line.slope == pytest.approx(half, rel=1e-6)
    assert line.slope - line.low == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (5, 2.5706), (20, 2.0860), (21, 2.0796), (60, 2.0003), (10**6, 1.96)],
)
def test_quantile_is_that_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=1e-4)


def test_line_through_two_points_has_no_interval() -> None:
    line = fit_line([1.0, 3.0], [10.0, 20.0])
    assert line is not None
    assert (line.slope, line.intercept, line.low, line.high, line.rises) == (5.0, 5.0, None, None, False)


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1.0], [2.0]), ([2.0, 2.0], [1.0, 5.0]), ([0.0, 1.0], [math.nan, 1.0])]
)
def test_no_line_where_there_is_no_slope(x: list[float], y: list[float]) -> None:
    assert fit_line(x, y) is None


def test_line_rises_only_where_the_scatter_allows_to_say_so() -> None:
    steady, scattered = [0.0, 1.1, 1.9, 3.0], [0.0, 9.0, -9.0, 3.0]
    x = [0.0, 1.0, 2.0, 3.0]
    assert [fit_line(x, y).rises for y in (steady, scattered, steady[::-1])] == [True, False, False]  # type: ignore[union-attr]
