"""Rows of statistics of single tensors, and the exact combination of several into one. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STATISTICS: Final = ("rms", "max_abs", "mean", "std", "zero_fraction", "saturated_fraction")
COUNTS: Final = ("nan_count", "inf_count")
WIDTH: Final = len(STATISTICS) + len(COUNTS)


def combine(rows: Floats, elements: Floats) -> Floats:
    """Return the statistics of all elements together, as if the tensors had been one.

    Means are weighted by elements; the variance is that of the groups plus that between them (law of total
    variance), which does not cancel. NaN and Inf propagate.

    Args:
        rows: (tensors, WIDTH), columns as in `STATISTICS` and `COUNTS`, at least one row.
        elements: (tensors,) number of elements of each.

    Returns:
        (WIDTH,).
    """
    if len(rows) == 1:
        single: Floats = rows[0]
        return single
    with np.errstate(all="ignore"):
        weights = elements / elements.sum()
        rms, max_abs, mean, std = rows[:, :4].T
        # Scaled, so that the squares of extreme values neither overflow nor vanish.
        scale = _scale_of(rms)
        joint_mean = float(np.sum(weights * mean))
        variance = np.sum(weights * (np.square(std / scale) + np.square((mean - joint_mean) / scale)))
        return np.array(
            [
                np.sqrt(np.sum(weights * np.square(rms / scale))) * scale,
                max_abs.max(),
                joint_mean,
                np.sqrt(variance) * scale,
                *(weights @ rows[:, 4:6]),
                *rows[:, 6:].sum(axis=0),
            ]
        )


def combine_by(groups: npt.NDArray[np.intp], rows: Floats, elements: Floats, count: int) -> Floats:
    """Combine the rows of each group 0 ... count - 1; (count, WIDTH), zeros for a group without rows."""
    result = np.zeros((count, rows.shape[1] if rows.ndim == 2 else WIDTH))
    is_alone = np.bincount(groups, minlength=count)[groups] == 1
    result[groups[is_alone]] = rows[is_alone]
    members: dict[int, list[int]] = {}
    for position in np.flatnonzero(~is_alone).tolist():
        members.setdefault(int(groups[position]), []).append(position)
    for group, positions in members.items():
        result[group] = _combined(rows, elements, positions)
    return result


def _combined(rows: Floats, elements: Floats, positions: Sequence[int]) -> Floats:
    return combine(rows[positions], elements[positions])


def _scale_of(rms: Floats) -> float:
    largest = float(rms.max())
    return largest if 0 < largest < np.inf else 1.0
