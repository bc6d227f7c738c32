"""Norms outside of absolute limits: which, and which first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.detectors.gradient_limits import outside_limits, rows_above, rows_below

NORMS = np.array([1.0, math.inf, 20.0, math.nan, 0.0, 30.0, 1e-9])


def test_rows_above_a_limit_begin_with_nan_and_the_largest() -> None:
    assert rows_above(NORMS, 10.0).tolist() == [3, 1, 5, 2]


def test_rows_below_a_limit_begin_with_the_smallest() -> None:
    assert rows_below(NORMS, 1e-6).tolist() == [4, 6]


def test_a_norm_at_the_limit_is_inside() -> None:
    assert not len(rows_above(np.array([10.0]), 10.0))
    assert not len(rows_below(np.array([10.0]), 10.0))


@pytest.mark.parametrize(
    ("explosion", "vanishing", "kinds"),
    [
        (None, None, []),
        (10.0, None, ["gradient_explosion"]),
        (None, 1e-6, ["gradient_vanishing"]),
        (10.0, 1e-6, ["gradient_explosion", "gradient_vanishing"]),
        (math.inf, None, ["gradient_explosion"]),
    ],
)
def test_outside_limits_are_those_that_were_asked_for(
    explosion: float | None, vanishing: float | None, kinds: list[str]
) -> None:
    found = outside_limits(NORMS, explosion=explosion, vanishing=vanishing)
    assert [outside.kind for outside in found] == kinds


def test_outside_limits_of_no_gradients_are_none() -> None:
    assert outside_limits(np.array([]), explosion=1.0, vanishing=1.0) == []
