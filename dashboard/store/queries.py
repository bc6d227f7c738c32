"""Reads: one snapshot of the database, merged with the live edge, pooled to what a view can show.

Called by a store on any thread. Nothing here writes, and nothing knows the engine: that is `rows.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from .edge import Pending, ScalarBlock
from .odd_rows import OddRows
from .owners import Owners, read_owners
from .protocol import RunSummary, StepRange
from .pyramid import (
    FACTOR,
    MEASURED,
    Flags,
    Floats,
    Grid,
    Piece,
    Ranges,
    Steps,
    choose_grid,
    cover,
    join_ranges,
    pool_rows,
    uncovered,
)
from .retention import RESIDUE, kinds_of
from .rows import Rows
from .tensors import (
    Columns,
    Progress,
    SeriesRows,
    chosen_rows,
    merge_rows,
)

SCALAR_COLUMNS: Final = ("name", "step", "time", "min", "mean", "max", "nan", "inf", "pooled")
Index = npt.NDArray[np.intp]
_NO_STEPS: Final[Steps] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view: committed rows, and what is not among them."""

    rows: Rows
    edge: list[Pending]
    events_mark: int = 0
    """A number that changes with every event, of all runs."""
    runs: list[RunSummary] | None = None
    """The runs at that moment, without counts of events; None outside of a view."""
    odd: OddRows = field(default_factory=OddRows)
    """Takes the rows that cannot be read."""
    event_counts: dict[str, dict[str, int]] | None = None
    """Run -> severity -> events at that moment, where they were counted then."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What one timeline holds, committed or not."""

    progress: Progress | None
    unsettled: Steps
    """Steps of uncommitted frames."""
    kept: Ranges
    """Where raw rows exist below the floor."""
    owners: Owners | None = None
    """Whose the uncommitted steps are, where some have come twice."""

    @property
    def next_step(self) -> int:
        """One more than the largest committed step."""
        return self.progress.max_step + 1 if self.progress else 0

    @property
    def raw_floor(self) -> int:
        """First step from which on no raw row has been removed."""
        return self.progress.raw_floor if self.progress else 0

    def clip(self, steps: StepRange) -> tuple[int, int] | None:
        """Return the first and last existing step of a range; None when it is empty."""
        known = [self.progress.first_step, self.progress.max_step] if self.progress else []
        if len(self.unsettled):
            known += [int(self.unsettled.min()), int(self.unsettled.max())]
        if not known:
            return None
        first, last = min(known), max(known)
        first = first if steps.first is None else max(first, steps.first)
        last = last if steps.end is None else min(last, steps.end - 1)
        return (first, last) if first <= last else None

    def finest_level(self, first: int, last: int) -> int:
        """Return 1 where raw rows of `[first, last]` exist, or are just being written again, else 16."""
        end = min(last + 1, self.raw_floor)
        if end <= first:
            return 1
        coming = np.unique(self.unsettled[(self.unsettled >= first) & (self.unsettled < end)] // FACTOR)
        ranges = [(bucket * FACTOR, (bucket + 1) * FACTOR) for bucket in coming.tolist()]
        return FACTOR if uncovered(join_ranges(sorted(self.kept + ranges)), first, end) else 1

    def pieces(self, grid: Grid) -> list[Piece]:
        """Return the rows to read for a grid.

        Raw rows below the floor are completed by what stands for the removed ones, except on a raw grid.
        """
        result: list[Piece] = []
        for piece in cover(grid, next_step=self.next_step, unsettled=self.unsettled):
            result.append(piece)
            old_end = min(piece.end, self.raw_floor)
            if piece.level == 1 and grid.level > 1 and piece.first < old_end:
                result.append(Piece(RESIDUE, piece.first, old_end))
                result += [Piece(FACTOR, *gap) for gap in uncovered(self.kept, piece.first, old_end)]
        return result


def read_extent(
    snapshot: Snapshot, timeline: int, blocks: Sequence[tuple[int, Steps]], *, is_scalar: bool
) -> Extent:
    """Return what a timeline holds, given incarnation and steps of its uncommitted frames."""
    progress = snapshot.rows.progress([timeline]).get(timeline)
    kept = snapshot.rows.kept([timeline])[timeline] if progress and progress.raw_floor else []
    unsettled = np.unique(np.concatenate([_NO_STEPS, *(steps for _, steps in blocks)]))
    next_step = progress.max_step + 1 if progress else 0
    owners = read_owners(snapshot.rows, timeline, kinds_of(is_scalar), blocks, next_step=next_step)
    return Extent(progress, unsettled, kept, owners)


# ---------------------------------------------------------------------------------------------- scalars


def read_scalars(
    snapshot: Snapshot, timeline: int, series: dict[int, str], *, steps: StepRange, max_points: int
) -> pd.DataFrame:
    """Read and pool scalar series of one rank; see `Store.scalars`."""
    blocks = [b for item in snapshot.edge for b in item.scalars if b.timeline == timeline]
    steps_of = [(b.incarnation, b.frame_steps) for b in blocks]
    extent = read_extent(snapshot, timeline, steps_of, is_scalar=True)
    span = extent.clip(steps)
    if span is None or not series:
        return _scalar_frame(None, series)
    grid = choose_grid(*span, max_columns=max_points, finest=extent.finest_level(*span))
    numbers = list(series)
    parts = [snapshot.rows.scalars(timeline, numbers, piece) for piece in extent.pieces(grid)]
    parts.append(_edge_scalars(blocks, numbers, grid))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if extent.owners is not None:
        shown = extent.owners.keeps(joined["step"], joined["incarnation"])
        joined = {name: column[shown] for name, column in joined.items()}
    if len(parts[-1]["step"]):
        joined = _newest_only(joined)
    return _scalar_frame(_pool_scalars(joined, grid), series)


def _edge_scalars(blocks: Sequence[ScalarBlock], series: list[int], grid: Grid) -> Columns:
    """Return the uncommitted values as rows of the same form as the fetched ones."""
    names = ("series", "step", "time", "seq", "value")
    masks = [np.isin(b.series, series) & (b.step >= grid.first) & (b.step < grid.end) for b in blocks]
    kept = {
        name: np.concatenate(
            [np.empty(0), *(getattr(b, name)[m] for b, m in zip(blocks, masks, strict=True))]
        )
        if name in ("time", "value")
        else np.concatenate([_NO_STEPS, *(getattr(b, name)[m] for b, m in zip(blocks, masks, strict=True))])
        for name in names
    }
    counts = [int(mask.sum()) for mask in masks]
    value = kept.pop("value")
    kept["incarnation"] = np.repeat(np.array([b.incarnation for b in blocks], np.int64), counts)
    kept |= {"min": value, "mean": value, "max": value}
    kept["finite"] = np.isfinite(value).astype(np.int64)
    kept["nan"], kept["inf"] = np.isnan(value).astype(np.int64), np.isinf(value).astype(np.int64)
    kept["pooled"] = np.ones(len(value), np.int64)
    return kept


def _newest_only(rows: Columns) -> Columns:
    """Of raw rows of one series and step keep the newest incarnation's last one; pooled rows stay."""
    order = np.lexsort((rows["seq"], rows["incarnation"], rows["step"], rows["series"]))
    series, step = rows["series"][order], rows["step"][order]
    last = np.r_[(series[1:] != series[:-1]) | (step[1:] != step[:-1]), True]
    chosen = order[last | (rows["incarnation"][order] < 0)]
    return {name: column[chosen] for name, column in rows.items()}


def _pool_scalars(rows: Columns, grid: Grid) -> Columns:
    """Pool rows of one series and grid column; result ascending by series and step."""
    column = rows["step"] // grid.width
    order = np.lexsort((rows["step"], rows["series"]))
    series, column = rows["series"][order], column[order]
    change = (series[1:] != series[:-1]) | (column[1:] != column[:-1])
    starts = np.flatnonzero(np.r_[True, change]) if len(order) else np.empty(0, np.intp)
    if len(starts) == len(order):
        result = {name: values[order] for name, values in rows.items()}
        empty = result["finite"] == 0
        for name in ("min", "mean", "max"):
            result[name] = np.where(empty, np.nan, result[name])
        return result
    finite = rows["finite"][order]
    has = finite > 0
    count = np.add.reduceat(finite, starts)
    share = finite / np.maximum(np.repeat(count, np.diff(np.r_[starts, len(order)])), 1)
    result = {name: rows[name][order][starts] for name in ("series", "step", "time")}
    low = np.minimum.reduceat(np.where(has, rows["min"][order], np.inf), starts)
    high = np.maximum.reduceat(np.where(has, rows["max"][order], -np.inf), starts)
    mean = np.add.reduceat(np.where(has, rows["mean"][order], 0.0) * share, starts)
    result["min"] = np.where(count > 0, low, np.nan)
    result["max"] = np.where(count > 0, high, np.nan)
    result["mean"] = np.where(count > 0, np.clip(mean, low, np.maximum(low, high)), np.nan)
    for name in ("nan", "inf", "pooled"):
        result[name] = np.add.reduceat(rows[name][order], starts)
    return result


def _scalar_frame(rows: Columns | None, series: dict[int, str]) -> pd.DataFrame:
    """Return the protocol's frame, by name and step."""
    integers = ("step", "nan", "inf", "pooled")
    if rows is None:
        columns: dict[str, Any] = {
            name: np.empty(0, np.int64 if name in integers else np.float64) for name in SCALAR_COLUMNS
        }
        columns["name"] = np.empty(0, dtype=object)
        return pd.DataFrame(columns)
    numbers, inverse = np.unique(rows["series"], return_inverse=True)
    labels = np.array([series[int(number)] for number in numbers], dtype=object)
    place = np.argsort(np.argsort(labels))
    order = np.lexsort((rows["step"], place[inverse]))
    columns = {"name": labels[inverse][order]}
    for name in SCALAR_COLUMNS[1:]:
        columns[name] = rows[name][order].astype(np.int64 if name in integers else np.float64)
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows of one layout on a grid: (columns, rows) arrays."""

    values: Floats
    flags: Flags


def blank_picture(grid: Grid, rows: int) -> Picture:
    """Return a picture in which nothing was measured."""
    shape = (grid.columns, rows)
    return Picture(np.full(shape, np.nan, np.float32), np.zeros(shape, np.uint8))


def tensor_extent(snapshot: Snapshot, timeline: int) -> Extent:
    """Return what a layout's timeline holds."""
    blocks = [b for item in snapshot.edge for b in item.tensors if b.timeline == timeline]
    return read_extent(snapshot, timeline, [(b.incarnation, b.step) for b in blocks], is_scalar=False)


def read_picture(
    snapshot: Snapshot, timeline: int, kind: str, *, series: int, index: Index, grid: Grid, extent: Extent
) -> Picture:
    """Read and pool one statistic of a layout.

    Args:
        index: Which values of a row are wanted, in this order; -1 for one that the layout does not have.
    """
    picture = blank_picture(grid, len(index))
    pending = _edge_rows(snapshot, timeline, series)
    for piece in extent.pieces(grid):
        level, first, end = piece.level, piece.first, piece.end
        parts = snapshot.rows.tensors(
            kind, timeline, series=series, level=level, first=first, end=end, odd=snapshot.odd
        )
        if level == 1:
            parts += [part for rows in pending if (part := _between(rows, first, end))]
            parts = _owned(parts, extent.owners)
        if parts:
            _paint(picture, merge_rows(parts), grid, index)
    return picture


def _edge_rows(snapshot: Snapshot, timeline: int, series: int) -> list[SeriesRows]:
    """Return the uncommitted rows of a series in the form of fetched ones."""
    return [
        SeriesRows(
            timeline=timeline,
            series=series,
            step=rows.step,
            incarnation=np.full(len(rows.step), block.incarnation, np.int64),
            seq=rows.seq,
            values=rows.values,
            flags=rows.flags,
        )
        for item in snapshot.edge
        for block in item.tensors
        if block.timeline == timeline
        for rows in block.rows
        if rows.series == series
    ]


def _between(rows: SeriesRows, first: int, end: int) -> SeriesRows | None:
    """Return the rows with steps in `[first, end)`, one per step and ascending; None if there are none."""
    inside = np.flatnonzero((rows.step >= first) & (rows.step < end))
    if not len(inside):
        return None
    order = inside[np.lexsort((rows.seq[inside], rows.step[inside]))]
    order = order[np.r_[rows.step[order][1:] != rows.step[order][:-1], True]]
    return chosen_rows(rows, order)


def _owned(parts: list[SeriesRows], owners: Owners | None) -> list[SeriesRows]:
    """Leave out what older starts have of steps that are a newer one's."""
    if owners is None:
        return parts
    shown = [(part, owners.keeps(part.step, part.incarnation)) for part in parts]
    return [part if mask.all() else chosen_rows(part, mask) for part, mask in shown if mask.any()]


def _paint(picture: Picture, rows: SeriesRows, grid: Grid, index: Index) -> None:
    """Pool the wanted values of rows into the columns they belong to, keeping what is already there."""
    values, flags = rows.values, rows.flags
    if len(index) and int(index.max()) >= values.shape[1]:
        return  # rows of another width than the layout's: see `OddRows`
    if not np.array_equal(index, np.arange(values.shape[1])):
        present = index >= 0
        values = np.where(present, values[:, index], np.float32(np.nan))
        if flags is not None or not present.all():
            measured = np.ones(values.shape, np.uint8) if flags is None else flags[:, index]
            flags = np.where(present, measured, 0).astype(np.uint8)
    group, values, flags = pool_rows((rows.step - grid.first) // grid.width, values, flags)
    picture.values[group] = np.fmax(picture.values[group], values)
    picture.flags[group] |= np.uint8(MEASURED) if flags is None else flags


def combine(pictures: Sequence[Picture], grid: Grid) -> Picture:
    """Lay pictures of the same rows over each other, the newest last.

    At one step a column the newest that measured a cell wins; wider columns pool: nothing hides a NaN.
    """
    result = pictures[0]
    for newer in pictures[1:]:
        if grid.width == 1:
            values = np.where(newer.flags > 0, newer.values, result.values)
            flags = np.where(newer.flags > 0, newer.flags, result.flags)
        else:
            values, flags = np.fmax(result.values, newer.values), result.flags | newer.flags
        result = Picture(values, flags)
    return result
