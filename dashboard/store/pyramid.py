"""Pure arithmetic of the 16x pyramid: which columns a view has, which rows cover them, how rows are pooled.

A *bucket* of level L holds the steps `[k*L, (k+1)*L)`. It is *closed* once a later step has been committed,
and only then stored; the open end of a run is always pooled from finer rows. Numpy only, no I/O; called by
the writer and by the readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from probe.wire.layer_values import MEASURED as MEASURED
from probe.wire.layer_values import SAW_INF as SAW_INF
from probe.wire.layer_values import SAW_NAN as SAW_NAN
from probe.wire.layer_values import Flags as Flags
from probe.wire.layer_values import Floats as Floats
from probe.wire.layer_values import flags_of as flags_of

FACTOR: Final = 16
POOLED: Final = 8
"""Flag of a raw row's values that came pooled: each is the largest of its bucket of `FACTOR` steps."""
LEVELS: Final = (1, 16, 256, 4096, 65_536, 1_048_576)
"""Steps in one stored row; 1 is raw."""

Steps = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]
"""Half-open step ranges."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns of equal width, aligned to multiples of it, so that a growing view does not shimmer."""

    first: int
    """First step of the first column, a multiple of `width`."""
    width: int
    """Steps in one column: a power of two."""
    columns: int
    level: int
    """Coarsest stored level that divides `width`."""

    @property
    def end(self) -> int:
        """First step after the last column."""
        return self.first + self.width * self.columns


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps `[first, end)`, both multiples of `level`, to be read from that level."""

    level: int
    first: int
    end: int


def choose_grid(first: int, last: int, *, max_columns: int, finest: int = 1) -> Grid:
    """Return the finest grid over `[first, last]` with at most `max_columns` columns.

    Args:
        finest: 1, or 16 where raw rows no longer exist.
    """
    width = finest
    while last // width - first // width + 1 > max_columns:
        width *= 2
    start = first // width
    level = max(candidate for candidate in LEVELS if candidate <= width)
    return Grid(start * width, width, last // width - start + 1, level)


def cover(grid: Grid, *, next_step: int, unsettled: Steps) -> list[Piece]:
    """Return the rows to read for a grid: coarse where buckets are closed, finer at the open end.

    Args:
        next_step: One more than the largest committed step; buckets that end later are not stored.
        unsettled: Steps that are not committed. A bucket with one of them is read from finer rows, because
            a repeated step may replace what the stored row contains.
    """
    pieces: list[Piece] = []
    todo = [(grid.first, grid.end)]
    level = grid.level
    while level > 1:
        rest: Ranges = []
        for first, end in todo:
            closed = min(end, max(first, next_step // level * level))
            dirty = unsettled[(unsettled >= first) & (unsettled < closed)] // level
            position = first
            for bucket in np.unique(dirty).tolist():
                if position < bucket * level:
                    pieces.append(Piece(level, position, bucket * level))
                _extend(rest, bucket * level, (bucket + 1) * level)
                position = (bucket + 1) * level
            if position < closed:
                pieces.append(Piece(level, position, closed))
            if closed < end:
                _extend(rest, closed, end)
        todo, level = rest, level // FACTOR
    return pieces + [Piece(1, first, end) for first, end in todo]


def _extend(ranges: Ranges, first: int, end: int) -> None:
    """Append `[first, end)`, joined to the last range where they touch."""
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((first, end))


def closing(level: int, *, before: int, after: int, touched: Steps) -> Ranges:
    """Return the step ranges whose buckets must be written when `next_step` moves on.

    These are the buckets that close now, and the closed ones that contain a `touched` step. Ranges are
    disjoint, ascending and made of whole buckets; most of a range may be empty when steps are sparse.
    """
    closed = after // level * level
    ranges: Ranges = []
    for bucket in np.unique(touched[touched < min(closed, before // level * level)] // level).tolist():
        _extend(ranges, bucket * level, (bucket + 1) * level)
    if before // level * level < closed:
        _extend(ranges, before // level * level, closed)
    return ranges


def pool_rows(group: Steps, values: Floats, flags: Flags | None) -> tuple[Steps, Floats, Flags | None]:
    """Pool rows of equal `group` by maximum over the finite values, and their flags by OR.

    Args:
        group: (rows,) ascending.
        values: (rows, width); NaN or Inf only where `flags` says so.
        flags: (rows, width); None when every value was measured and is finite.

    Returns:
        The distinct groups; (groups, width) largest finite value, NaN where there is none; flags.
    """
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]]) if len(group) else np.empty(0, np.intp)
    if flags is None:
        return group[starts], np.maximum.reduceat(values, starts, axis=0), None
    finite = np.where(np.isfinite(values) & (flags > 0), values, -np.inf)
    largest = np.maximum.reduceat(finite, starts, axis=0)
    has_finite = np.logical_or.reduceat(np.isfinite(finite), starts, axis=0)
    largest = np.where(has_finite, largest, np.float32(np.nan)).astype(np.float32)
    return group[starts], largest, np.bitwise_or.reduceat(flags, starts, axis=0)


def join_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Join ranges, ascending by first step, that overlap or touch."""
    result: Ranges = []
    for first, end in ranges:
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((first, end))
    return result


def uncovered(ranges: Ranges, first: int, end: int) -> Ranges:
    """Return the parts of `[first, end)` that disjoint ascending ranges leave out."""
    result: Ranges = []
    for start, stop in [*ranges, (end, end)]:
        if first < min(start, end):
            result.append((first, min(start, end)))
        first = max(first, stop)
    return result
