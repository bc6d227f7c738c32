"""The cases of a table of several columns that are tried each time; all others are tried by `make faults`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def thinned(*columns: Sequence[Any], every: int) -> list[Any]:
    """Return the product of columns for `pytest.mark.parametrize`, one case in `every` without a mark.

    Those lie on diagonals: each value of a column is tried with others of the next each time.
    """
    assert len(columns) > 1 and every <= max(map(len, columns)), "a value would never be tried"
    cases = itertools.product(*(enumerate(column) for column in columns))
    return [
        pytest.param(
            *(value for _, value in case),
            marks=[pytest.mark.faults] if sum(at for at, _ in case) % every else [],
        )
        for case in cases
    ]
