"""Which cases of a long table are tried each time; all others are tried by `make faults`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def thinned(*columns: Sequence[Any], every: int) -> list[Any]:
    """Return the product of columns for `pytest.mark.parametrize`, one case in `every` without a mark.

    Those lie on diagonals: each value of a column is tried with others of the next each time.
    """
    rest = sum(map(len, columns)) - len(columns) + 2
    assert all(rest - len(column) >= every for column in columns), "a value would never be tried"
    cases = itertools.product(*(enumerate(column) for column in columns))
    return [
        pytest.param(
            *(value for _, value in case),
            marks=[pytest.mark.faults] if sum(at for at, _ in case) % every else [],
        )
        for case in cases
    ]


def some(values: Sequence[Any], count: int) -> list[Any]:
    """Return values for `pytest.mark.parametrize`, as seeds are, all but the first ones marked."""
    return [*values[:count], *(pytest.param(value, marks=pytest.mark.faults) for value in values[count:])]
