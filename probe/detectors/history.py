"""Robust history of what a healthy run looks like: bounded windows, median and MAD, for one series or many.

Used by the relative detectors on the training thread. Only healthy values are to be added: what a baseline
judges must not have entered it.

Median and MAD (median absolute deviation) have a breakdown point of 50 %, mean and standard deviation of
0 (Rousseeuw & Croux, "Alternatives to the Median Absolute Deviation", JASA 88, 1993, section 1). For normal
noise one standard deviation is 1.4826 MAD.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np

from .base import Floats

WINDOW: Final = 128
"""Healthy values behind a baseline."""
TAIL: Final = 0.95
BLOCKS: Final = 64
"""The rows of `RowHistory` are refreshed in turn, one block a step: all medians of 2,000 windows at once take
several milliseconds, a block of 1/64 takes 0.05 ms, and a baseline of some ten steps ago serves as well
(`tests/benchmarks/bench_detectors.py`)."""
MIN_BLOCK_ROWS: Final = 16
SLOW_REFRESHES: Final = 16
"""Memory of the slow reference: 16 refreshes of 64 steps, about 1,000 steps."""
ADOPT_AFTER: Final = 40.0
"""Abnormal steps, forgotten at the pace of the window, after which the new level is taken for normal."""


class SeriesHistory:
    """Window, median and MAD of one series of finite numbers."""

    def __init__(self, *, window: int = WINDOW, refresh_steps: int = 1) -> None:
        """Start empty; `refresh_steps` is how many additions old median and MAD may be."""
        self._values: deque[float] = deque(maxlen=window)
        self._refresh_steps = refresh_steps
        self._stale = 0
        self._median = math.nan
        self._mad = math.nan
        self._tail = math.nan

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Add one healthy value."""
        self._values.append(value)
        self._stale += 1

    def robust(self) -> tuple[float, float]:
        """Return (median, MAD) of the window; NaN while it is empty."""
        if self._stale and (self._stale >= self._refresh_steps or math.isnan(self._median)):
            values = np.sort(np.fromiter(self._values, dtype=np.float64, count=len(self._values)))
            with np.errstate(all="ignore"):
                self._median = _middle(values)
                self._mad = _middle(np.sort(np.abs(values - self._median)))
            share = TAIL if self._mad > 0.0 else 1.0
            self._tail = float(values[min(math.ceil(share * len(values)), len(values) - 1)])
            self._stale = 0
        return self._median, self._mad

    @property
    def tail(self) -> float:
        """How high healthy values reach, at the last refresh: the 95 % quantile (its upper neighbour in the
        window), or the largest value where MAD is 0, so that it knows nothing of the scatter."""
        return self._tail

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._median = self._mad = self._tail = math.nan
        self._stale = 0


class RowHistory:
    """Windows, medians and MADs of many series (rows), one block of rows refreshed per step.

    NaN in a step's column means "no healthy value of this row at this step".
    """

    def __init__(self, rows: int, *, window: int = WINDOW) -> None:
        self.median: Floats = np.full(rows, np.nan)
        """(rows,) median at the row's last refresh."""
        self.mad: Floats = np.full(rows, np.nan)
        """(rows,) median absolute deviation at the row's last refresh."""
        self.slow: Floats = np.full(rows, np.nan)
        """(rows,) mean of the medians, at first plain, later exponential over about 1,000 steps."""
        self.samples = np.zeros(rows, dtype=np.int64)
        """(rows,) healthy values seen."""
        self._refreshes: Floats = np.zeros(rows)
        self._window = np.full((rows, window), np.nan, dtype=np.float32)
        self._cursor = 0
        self._block = 0

    def add(self, column: Floats) -> None:
        """Add one step, (rows,), and refresh the next block of rows.

        A row without a value keeps its oldest one: its window slot is left as it is.
        """
        width = self._window.shape[1]
        present = ~np.isnan(column)
        if present.all():
            self._window[:, self._cursor] = column
        else:
            self._window[present, self._cursor] = column[present]
        self._cursor = (self._cursor + 1) % width
        self.samples += present
        rows = max(math.ceil(len(column) / BLOCKS), MIN_BLOCK_ROWS)
        start = self._block * rows
        if start < len(column):
            self.refresh(start, min(start + rows, len(column)))
        self._block = (self._block + 1) % BLOCKS

    def refresh(self, start: int, stop: int) -> None:
        """Recompute median, MAD and slow reference of the rows `[start, stop)` from their windows."""
        window = self._window[start:stop]
        median = _row_medians(np.sort(window, axis=1))
        deviation = np.abs(window - median[:, None])
        deviation.sort(axis=1)
        self.median[start:stop] = median
        self.mad[start:stop] = _row_medians(deviation)
        known = ~np.isnan(median)
        refreshes = np.minimum(self._refreshes[start:stop] + known, SLOW_REFRESHES)
        slow = np.where(np.isnan(self.slow[start:stop]), median, self.slow[start:stop])
        weight = np.where(known, 1.0 / np.maximum(refreshes, 1.0), 0.0)
        self.slow[start:stop] = slow + weight * (np.where(known, median, 0.0) - np.where(known, slow, 0.0))
        self._refreshes[start:stop] = refreshes


class Strikes:
    """Counts abnormal steps, forgetting at the window's pace, to tell an incident from a new normal."""

    def __init__(self) -> None:
        self._count = 0.0

    def is_new_normal(self, *, abnormal: bool) -> bool:
        """Account for one step; True (and start anew) once `ADOPT_AFTER` is passed."""
        self._count = self._count * (1.0 - 1.0 / WINDOW) + abnormal
        if self._count < ADOPT_AFTER:
            return False
        self._count = 0.0
        return True


def _middle(ordered: Floats) -> float:
    """Median of a non-empty ascending array."""
    return float(ordered[(len(ordered) - 1) // 2] / 2.0 + ordered[len(ordered) // 2] / 2.0)


def _row_medians(ordered: np.typing.NDArray[np.float32]) -> Floats:
    """Medians of rows in ascending order with their NaN at the end; NaN for a row of nothing else."""
    width = ordered.shape[1]
    if np.isnan(ordered[:, -1]).any():
        count = width - np.isnan(ordered).sum(axis=1)
        row = np.arange(len(ordered))
        low, high = (
            ordered[row, np.maximum(count - 1, 0) // 2],
            ordered[row, np.minimum(count // 2, width - 1)],
        )
    else:
        low, high = ordered[:, (width - 1) // 2], ordered[:, width // 2]
    medians: Floats = (low.astype(np.float64) + high) / 2.0
    return medians
