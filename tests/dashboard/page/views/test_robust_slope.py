"""The robust slope against all pairs by hand, and how often its interval holds the truth."""

from __future__ import annotations

from itertools import combinations
from statistics import median

import numpy as np
import pytest

from dashboard.page.views.robust_slope import MOST_POINTS, robust_slope


def test_slope_is_the_median_of_all_pairs() -> None:
    draw = np.random.default_rng(3)
    x = np.sort(draw.choice(1000, 40, replace=False)).astype(float)
    y = 7.0 + 0.3 * x + draw.standard_normal(40)
    expected = median((y[b] - y[a]) / (x[b] - x[a]) for a, b in combinations(range(40), 2))
    slope = robust_slope(x, y)
    assert slope is not None
    assert slope.value == pytest.approx(expected, rel=1e-12)
    assert (slope.points, slope.span, slope.level) == (40, x[-1] - x[0], pytest.approx(np.median(y)))
    assert slope.low < expected < slope.high


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw, x, held = np.random.default_rng(0), np.arange(30.0), 0
    for _ in range(600):
        slope = robust_slope(x, 0.5 * x + draw.standard_normal(30))
        assert slope is not None
        held += slope.low <= 0.5 <= slope.high
    assert 0.92 < held / 600 < 0.98


def test_a_third_of_wild_values_does_not_move_it() -> None:
    x = np.arange(60.0)
    y = 2.0 * x
    y[5:60:4] += 1e9
    slope = robust_slope(x, y)
    assert slope is not None and slope.value == pytest.approx(2.0)


def test_values_that_are_not_finite_are_left_out() -> None:
    x, y = np.arange(20.0), np.arange(20.0)
    y[[3, 7]] = np.nan, np.inf
    slope = robust_slope(x, y)
    assert slope is not None and (slope.value, slope.points) == (1.0, 18)


def test_of_very_many_points_an_even_choice_is_taken() -> None:
    x = np.arange(10_000.0)
    slope = robust_slope(x, 3.0 * x)
    assert slope is not None
    assert (slope.points, slope.span, slope.value) == (MOST_POINTS, 9999.0, 3.0)


@pytest.mark.parametrize("x", [[], [1.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
def test_too_few_points_have_no_slope(x: list[float]) -> None:
    assert robust_slope(np.array(x), np.array(x)) is None
