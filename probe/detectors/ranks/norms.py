"""Compares rows of norms: which agree, and by how much others differ. Pure numpy."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_MOST_GROUPS: Final = 8
"""Rows that agree with none of so many others are not compared further."""


def relative_difference(values: Floats, base: Floats) -> Floats:
    """Relative difference of each norm; 0 where both are 0."""
    scale = np.maximum(np.abs(values), np.abs(base))
    return np.divide(np.abs(values - base), scale, out=np.zeros_like(scale), where=scale > 0)


def agree_with(base: Floats, rows: Floats, tolerance: float) -> Bools:
    """(rows,) whether all norms of a row are those of the base."""
    scale = np.maximum(np.abs(rows), np.abs(base))
    return np.asarray((np.abs(rows - base) <= tolerance * scale).all(axis=1))


def groups_of(rows: Floats, tolerance: float) -> list[list[int]]:
    """Indices of rows that agree with each other, by the first of them; past some groups each is alone."""
    left = np.arange(len(rows))
    groups: list[list[int]] = []
    while len(left):
        if len(groups) >= _MOST_GROUPS:
            return [*groups, *([int(index)] for index in left)]
        same = agree_with(rows[left[0]], rows[left], tolerance)
        groups.append([int(index) for index in left[same]])
        left = left[~same]
    return groups
