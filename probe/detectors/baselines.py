"""Robust history of what a healthy run looks like: bounded windows, median and MAD, for one series or many.

Used by the relative detectors on the training thread. Only healthy values are to be added: what a baseline
judges must not have entered it.

Median and MAD (median absolute deviation) have a breakdown point of 50 %, mean and standard deviation of
0 (Rousseeuw & Croux, "Alternatives to the Median Absolute Deviation", JASA 88, 1993, section 1). For normal
noise one standard deviation is 1.4826 MAD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .base import Floats

Floats32 = npt.NDArray[np.float32]

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
ROOM: Final = 512
"""Values that a series takes before its buffer is moved."""
MAX_LOG: Final = 709.0
"""The exponential of more is not a finite float64."""
ADOPT_AFTER: Final = 40.0
"""Abnormal steps, forgotten at the pace of the window, after which the new level is taken for normal."""


class Baseline(NamedTuple):
    """Median, MAD and tail of a window, as the values from `start` on are judged by."""

    start: int
    median: float
    mad: float
    tail: float
    """How high healthy values reach: the 95 % quantile (its upper neighbour in the window), or the largest
    value where MAD is 0, so that it knows nothing of the scatter."""


_UNKNOWN: Final = Baseline(0, math.nan, math.nan, math.nan)


class SeriesHistory:
    """Window, median and MAD of one series of finite numbers.

    Median and MAD are those of the last refresh: right after the first addition and after every
    `refresh_steps`-th since. They are computed when somebody asks, from the window as it was then.
    """

    def __init__(self, *, window: int = WINDOW, refresh_steps: int = 1) -> None:
        self._window = window
        self._every = refresh_steps
        self._buffer: Floats = np.empty(2 * window + refresh_steps + ROOM)
        self._offsets = np.arange(window)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._end = 0
        self._stale = self._every - 1
        self._refreshed = (0, 0)
        self._baseline: Baseline | None = _UNKNOWN

    def __len__(self) -> int:
        return min(self._end, self._window)

    def add(self, value: float) -> None:
        """Add one healthy value."""
        self._make_room(1)
        self._buffer[self._end] = value
        self._advance(1)

    def extend(self, values: Sequence[float] | Floats) -> None:
        """Add healthy values: the same as adding one after the other."""
        self._make_room(len(values))
        self._buffer[self._end : self._end + len(values)] = values
        self._advance(len(values))

    def robust(self) -> tuple[float, float]:
        """Return (median, MAD) of the last refresh; NaN while there is none."""
        baseline = self.baseline()
        return baseline.median, baseline.mad

    def baseline(self) -> Baseline:
        """Return what the next value is judged by."""
        if self._baseline is None:
            begin, end = self._refreshed
            self._baseline = _baselines([0], self._buffer[None, begin:end])[0]
        return self._baseline

    def reach(self, values: Floats) -> tuple[float, float]:
        """Return (lowest, highest) of all that any median can be made of while `values` are added."""
        kept = self._buffer[self._refreshed[0] : self._end]
        return float(min(kept.min(), values.min())), float(max(kept.max(), values.max()))

    def preview(self, values: Sequence[float] | Floats) -> list[Baseline]:
        """Return what each of `values` would be judged by, if all before it were added; adds none.

        The first baseline is the present one; the last may start behind the last value.
        """
        self._make_room(len(values))
        self._buffer[self._end : self._end + len(values)] = values
        starts = list(range(self._every - self._stale, len(values) + 1, self._every))
        if not starts:
            return [self.baseline()]
        stops = [self._end + start for start in starts]
        if stops[0] >= self._window:
            windows = self._buffer[np.array(stops)[:, None] - self._window + self._offsets]
            return [self.baseline(), *_baselines(starts, windows)]
        refreshed = [self._buffer[None, max(stop - self._window, 0) : stop] for stop in stops]
        rows = zip(starts, refreshed, strict=True)
        return [self.baseline(), *(_baselines([start], window)[0] for start, window in rows)]

    def _advance(self, count: int) -> None:
        self._end += count
        self._stale += count
        if self._stale >= self._every:
            self._stale %= self._every
            stop = self._end - self._stale
            self._refreshed = (max(stop - self._window, 0), stop)
            self._baseline = None

    def _make_room(self, count: int) -> None:
        """Move what may still be asked for to the front when the buffer is full."""
        if self._end + count <= len(self._buffer):
            return
        keep = min(self._end, self._window + self._every)
        needed = keep + count
        old, moved = self._buffer, self._end - keep
        if needed > len(old):
            self._buffer = np.empty(needed + ROOM)
        self._buffer[:keep] = old[moved : self._end].copy()
        self._end = keep
        self._refreshed = (max(self._refreshed[0] - moved, 0), max(self._refreshed[1] - moved, 0))


class RowRefresh(NamedTuple):
    """New medians of the rows `[start, stop)`, each after one step of a batch."""

    start: int
    stop: int
    step: npt.NDArray[np.intp]
    """(rows,) index of the step of the batch after which each row is refreshed, ascending."""
    median: Floats
    mad: Floats
    level: Floats
    slow: Floats
    refreshes: Floats


class RowHistory:
    """Windows, medians and MADs of many series (rows), one block of rows refreshed per step.

    NaN in a step's column means "no healthy value of this row at this step".
    """

    def __init__(self, rows: int, *, window: int = WINDOW) -> None:
        self.median: Floats = np.full(rows, np.nan)
        """(rows,) median at the row's last refresh."""
        self.mad: Floats = np.full(rows, np.nan)
        """(rows,) median absolute deviation at the row's last refresh."""
        self.level: Floats = np.full(rows, np.nan)
        """(rows,) exponential of the median."""
        self.slow: Floats = np.full(rows, np.nan)
        """(rows,) mean of the medians, at first plain, later exponential over about 1,000 steps."""
        self.samples = np.zeros(rows, dtype=np.int64)
        """(rows,) healthy values seen."""
        self._refreshes: Floats = np.zeros(rows)
        self._window = np.full((rows, window), np.nan, dtype=np.float32)
        self._cursor = 0
        self._block = 0
        self._block_rows = max(math.ceil(rows / BLOCKS), MIN_BLOCK_ROWS)

    def add(self, column: Floats) -> None:
        """Add one step, (rows,), and refresh the next block of rows.

        A row without a value keeps its oldest one: its window slot is left as it is.
        """
        present = ~np.isnan(column)
        if present.all():
            self._window[:, self._cursor] = column
        else:
            self._window[present, self._cursor] = column[present]
        self._cursor = (self._cursor + 1) % self._window.shape[1]
        self.samples += present
        start = self._block * self._block_rows
        self._block = (self._block + 1) % BLOCKS
        if start < len(column):
            self._refresh(start, min(start + self._block_rows, len(column)))

    def preview(self, columns: Floats) -> list[RowRefresh]:
        """Return the refreshes that adding (steps, rows) would bring, at most `BLOCKS` steps; adds none."""
        rows, per_block, steps = columns.shape[1], self._block_rows, len(columns)
        found, step = [], 0
        while step < steps:
            block = (self._block + step) % BLOCKS
            blocks = min(BLOCKS - block, steps - step)
            start, stop = block * per_block, min((block + blocks) * per_block, rows)
            if start < stop:
                after = step + np.arange(stop - start) // per_block
                found.append(self._refreshed(start, stop, after, self._window_after(columns, start, after)))
            step += blocks
        return found

    def extend(self, columns: Floats, refreshes: Sequence[RowRefresh]) -> None:
        """Add (steps, rows), with what `preview` said of them."""
        steps, width = len(columns), self._window.shape[1]
        present = None if not np.isnan(columns).any() else ~np.isnan(columns)
        slots = (self._cursor + np.arange(steps)) % width
        if present is None:
            self._window[:, slots] = columns.T
            self.samples += steps
        else:
            self._window[:, slots] = np.where(present.T, columns.T, self._window[:, slots])
            self.samples += present.sum(axis=0)
        self._cursor = (self._cursor + steps) % width
        self._block = (self._block + steps) % BLOCKS
        for refresh in refreshes:
            self._apply(refresh)

    def now(self, rows: npt.NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Return (median, MAD, tail) of some rows as they are now, not as at their last refresh."""
        window = np.sort(self._window[rows], axis=1)
        median = _row_medians(window)
        mad = _row_medians(np.sort(np.abs(window - median[:, None]), axis=1))
        count = window.shape[1] - np.isnan(window).sum(axis=1)
        at = np.clip(np.ceil(TAIL * count).astype(np.intp), 0, np.maximum(count - 1, 0))
        tail: Floats = window[np.arange(len(rows)), at].astype(np.float64)
        return median, mad, tail

    def refresh_all(self) -> None:
        """Recompute median, MAD and slow reference of every row from its window."""
        self._refresh(0, len(self.median))

    def _refresh(self, start: int, stop: int) -> None:
        at_once = np.zeros(stop - start, dtype=np.intp)
        self._apply(self._refreshed(start, stop, at_once, self._window[start:stop]))

    def _window_after(self, columns: Floats, start: int, after: npt.NDArray[np.intp]) -> Floats32:
        """The windows of the rows from `start` on, each with the columns up to its own step."""
        rows, steps = slice(start, start + len(after)), np.arange(len(columns))
        window = self._window[rows].copy()
        slots = (self._cursor + steps) % window.shape[1]
        new = columns[:, rows].T
        is_added = (steps <= after[:, None]) & ~np.isnan(new)
        window[:, slots] = np.where(is_added, new, window[:, slots])
        return window

    def _refreshed(self, start: int, stop: int, after: npt.NDArray[np.intp], window: Floats32) -> RowRefresh:
        median = _row_medians(np.sort(window, axis=1))
        deviation = np.abs(window - median[:, None])
        deviation.sort(axis=1)
        known = ~np.isnan(median)
        refreshes = np.minimum(self._refreshes[start:stop] + known, SLOW_REFRESHES)
        slow = np.where(np.isnan(self.slow[start:stop]), median, self.slow[start:stop])
        weight = np.where(known, 1.0 / np.maximum(refreshes, 1.0), 0.0)
        slow = slow + weight * (np.where(known, median, 0.0) - np.where(known, slow, 0.0))
        level = np.exp(np.minimum(median, MAX_LOG))
        return RowRefresh(start, stop, after, median, _row_medians(deviation), level, slow, refreshes)

    def _apply(self, refresh: RowRefresh) -> None:
        rows = slice(refresh.start, refresh.stop)
        self.median[rows], self.mad[rows], self.level[rows] = refresh.median, refresh.mad, refresh.level
        self.slow[rows], self._refreshes[rows] = refresh.slow, refresh.refreshes


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

    def calm(self, steps: int) -> None:
        """Account for so many steps, none of them abnormal."""
        for _ in range(steps if self._count else 0):
            self._count *= 1.0 - 1.0 / WINDOW


def _baselines(starts: Sequence[int], windows: Floats) -> list[Baseline]:
    """Baselines of (windows, values), each row not empty."""
    width = windows.shape[1]
    with np.errstate(all="ignore"):
        ordered = np.sort(windows, axis=1)
        median = _middles(ordered)
        mad = _middles(np.sort(np.abs(ordered - median[:, None]), axis=1))
    high = ordered[:, min(math.ceil(TAIL * width), width - 1)]
    tail = np.where(mad > 0.0, high, ordered[:, -1])
    columns = (median.tolist(), mad.tolist(), tail.tolist())
    return [Baseline(*row) for row in zip(starts, *columns, strict=True)]


def _middles(ordered: Floats) -> Floats:
    """Medians of ascending rows, none empty."""
    width = ordered.shape[1]
    middle: Floats = ordered[:, (width - 1) // 2] / 2.0 + ordered[:, width // 2] / 2.0
    return middle


def _row_medians(ordered: Floats32) -> Floats:
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
