"""Robust history of what a healthy run looks like: bounded windows, median and MAD, for one series or many.

Used by the relative detectors on the training thread. Only healthy values are to be added: what a baseline
judges must not have entered it.

Median and MAD (median absolute deviation) have a breakdown point of 50 %, mean and standard deviation of
0 (Rousseeuw & Croux, "Alternatives to the Median Absolute Deviation", JASA 88, 1993, section 1). For normal
noise one standard deviation is 1.4826 MAD.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
_REFRESHED_TOGETHER: Final = 256
"""Rows that are sorted at once where all are: what that takes is 128 KiB then, and stays with malloc."""
SLOW_REFRESHES: Final = 16
"""Memory of the slow reference: 16 refreshes of 64 steps, about 1,000 steps."""
ROOM: Final = 512
"""Values that a series takes before its buffer is moved."""
MAX_LOG: Final = 709.0
"""The exponential of more is not a finite float64."""
ADOPT_AFTER: Final = 40.0
"""Abnormal steps, forgotten at the pace of the window, after which the new level is taken for normal."""

_FEW: Final = 4
"""Windows that are sorted one by one."""


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

    def extend(self, values: Sequence[float] | Floats, baselines: Sequence[Baseline] = ()) -> None:
        """Add healthy values: the same as adding one after the other.

        Args:
            values: in their order.
            baselines: what `preview` said of these very values, where it was asked.
        """
        self._make_room(len(values))
        self._buffer[self._end : self._end + len(values)] = values
        self._advance(len(values))
        if len(baselines) > 1:
            self._baseline = baselines[-1]._replace(start=0)

    def robust(self) -> tuple[float, float]:
        """Return (median, MAD) of the last refresh; NaN while there is none."""
        baseline = self.baseline()
        return baseline.median, baseline.mad

    def baseline(self) -> Baseline:
        """Return what the next value is judged by."""
        if self._baseline is None:
            begin, end = self._refreshed
            self._baseline = _baseline(0, self._buffer[begin:end])
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
        if len(stops) > _FEW and stops[0] >= self._window:
            windows = self._buffer[np.array(stops)[:, None] - self._window + self._offsets]
            return [self.baseline(), *_baselines(starts, windows)]
        refreshed = [self._buffer[max(stop - self._window, 0) : stop] for stop in stops]
        return [self.baseline(), *map(_baseline, starts, refreshed)]

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
        # A step is a row of it: adding one touches 4 bytes of each of 1/16 as many cache lines.
        self._window = np.full((window, rows), np.nan, dtype=np.float32)
        self._cursor = 0
        self._block = 0
        self._block_rows = max(math.ceil(rows / BLOCKS), MIN_BLOCK_ROWS)

    def add(self, column: Floats) -> None:
        """Add one step, (rows,), and refresh the next block of rows.

        A row without a value keeps its oldest one: its window slot is left as it is.
        """
        present = ~np.isnan(column)
        np.copyto(self._window[self._cursor], column, where=present, casting="same_kind")
        self._cursor = (self._cursor + 1) % len(self._window)
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
        steps, present = len(columns), ~np.isnan(columns)
        is_full = bool(present.all())
        for first, slots in self._slots(steps):
            part = slice(first, first + slots.stop - slots.start)
            where = True if is_full else present[part]
            np.copyto(self._window[slots], columns[part], where=where, casting="same_kind")
        self.samples += steps if is_full else present.sum(axis=0)
        self._cursor = (self._cursor + steps) % len(self._window)
        self._block = (self._block + steps) % BLOCKS
        for refresh in refreshes:
            self._apply(refresh)

    def now(self, rows: npt.NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Return (median, MAD, tail) of some rows as they are now, not as at their last refresh."""
        window = np.sort(self._window[:, rows], axis=0)
        median, mad = _column_baselines(window)
        count = len(window) - np.isnan(window).sum(axis=0)
        at = np.clip(np.ceil(TAIL * count).astype(np.intp), 0, np.maximum(count - 1, 0))
        tail: Floats = window[at, np.arange(len(rows))].astype(np.float64)
        return median, mad, tail

    def refresh_all(self) -> None:
        """Recompute median, MAD and slow reference of every row from its window."""
        rows = len(self.median)
        for start in range(0, rows, _REFRESHED_TOGETHER):
            self._refresh(start, min(start + _REFRESHED_TOGETHER, rows))

    def _refresh(self, start: int, stop: int) -> None:
        at_once = np.zeros(stop - start, dtype=np.intp)
        self._apply(self._refreshed(start, stop, at_once, self._window[:, start:stop]))

    def _slots(self, steps: int) -> Iterator[tuple[int, slice]]:
        """Yield where so many steps go in the window: the first one of a part, and its place."""
        first, width = 0, len(self._window)
        while first < steps:
            begin = (self._cursor + first) % width
            count = min(steps - first, width - begin)
            yield first, slice(begin, begin + count)
            first += count

    def _window_after(self, columns: Floats, start: int, after: npt.NDArray[np.intp]) -> Floats32:
        """The windows of the rows from `start` on, each with the columns up to its own step."""
        rows, steps = slice(start, start + len(after)), np.arange(len(columns))
        window, new = self._window[:, rows].copy(), columns[:, rows]
        is_added = (steps[:, None] <= after) & ~np.isnan(new)
        for first, slots in self._slots(len(columns)):
            part = slice(first, first + slots.stop - slots.start)
            np.copyto(window[slots], new[part], where=is_added[part], casting="same_kind")
        return window

    def _refreshed(self, start: int, stop: int, after: npt.NDArray[np.intp], window: Floats32) -> RowRefresh:
        median, mad = _column_baselines(np.sort(window, axis=0))
        refreshes, slow = self._refreshes[start:stop], self.slow[start:stop]
        if math.isnan((median + slow).sum()):
            known = ~np.isnan(median)
            refreshes = np.minimum(refreshes + known, SLOW_REFRESHES)
            slow = np.where(np.isnan(slow), median, slow)
            weight = np.where(known, 1.0 / np.maximum(refreshes, 1.0), 0.0)
            slow = slow + weight * (np.where(known, median, 0.0) - np.where(known, slow, 0.0))
        else:
            refreshes = np.minimum(refreshes + 1.0, SLOW_REFRESHES)
            slow = slow + 1.0 / refreshes * (median - slow)
        level = np.exp(np.minimum(median, MAX_LOG))
        return RowRefresh(start, stop, after, median, mad, level, slow, refreshes)

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


def _baseline(start: int, values: Floats) -> Baseline:
    """The same of one window, (values,): where caches are empty NumPy takes twice as long."""
    window = sorted(values.tolist())
    width = len(window)
    low, high = (width - 1) // 2, width // 2
    median = window[low] / 2.0 + window[high] / 2.0
    apart = sorted([abs(value - median) for value in window])
    mad = apart[low] / 2.0 + apart[high] / 2.0
    return Baseline(start, median, mad, window[min(math.ceil(TAIL * width), width - 1) if mad > 0.0 else -1])


def _middles(ordered: Floats) -> Floats:
    """Medians of ascending rows, none empty."""
    width = ordered.shape[1]
    middle: Floats = ordered[:, (width - 1) // 2] / 2.0 + ordered[:, width // 2] / 2.0
    return middle


def _column_baselines(ordered: Floats32) -> tuple[Floats, Floats]:
    """Median and MAD of ascending columns with their NaN at the end; NaN for a column of nothing else."""
    if math.isnan(ordered[-1].sum()):
        median = _column_medians(ordered)
        return median, _column_medians(np.sort(np.abs(ordered - median), axis=0))
    median = _middle_rows(ordered)
    apart = ordered - median
    # The values nearest to the median stand side by side: a second sort would cost as much as the first.
    width, below = len(ordered), -apart[: len(ordered) // 2 + 1]
    low, high = (width + 1) // 2, width // 2 + 1
    near: Floats = np.maximum(apart[low - 1 :], below[: width - low + 1]).min(axis=0)
    far: Floats = np.maximum(apart[high - 1 :], below[: width - high + 1]).min(axis=0)
    return median, np.abs((near + far) / 2.0)


def _column_medians(ordered: npt.NDArray[np.floating]) -> Floats:
    """Medians of ascending columns with their NaN at the end; NaN for a column of nothing else."""
    width = len(ordered)
    count, column = width - np.isnan(ordered).sum(axis=0), np.arange(ordered.shape[1])
    low = ordered[np.maximum(count - 1, 0) // 2, column]
    high = ordered[np.minimum(count // 2, width - 1), column]
    medians: Floats = np.add(low, high, dtype=np.float64) / 2.0
    return medians


def _middle_rows(ordered: Floats32) -> Floats:
    """The same where none is NaN."""
    width = len(ordered)
    medians: Floats = np.add(ordered[(width - 1) // 2], ordered[width // 2], dtype=np.float64) / 2.0
    return medians
