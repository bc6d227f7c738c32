"""Scalars of all ranks of a run side by side: one query, pooled to the columns that a view can show.

Used by `DuckStore`: a read is planned under the store's lock and done with a snapshot. What one rank has at a
step is the same as in `queries.read_scalars`; here the engine pools it: hundreds of ranks are read at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .catalog import Catalog
from .edge import ScalarBlock
from .incarnation import Incarnation
from .protocol import RankScalars, RankSeries, StepRange
from .pyramid import MEASURED, SAW_INF, SAW_NAN, Flags, Grid, Piece, Steps, choose_grid
from .queries import Extent, Snapshot
from .tensors import Columns, has_repeated
from .timelines import SCALAR

MOST_RANKS: Final = 1024
"""Ranks that have sent nothing have rows in runs of so many at most."""
_ALL_STEPS: Final = StepRange()
_Doubles = npt.NDArray[np.float64]
_NO_STEPS: Final[Steps] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RankSource:
    """One rank, and where its scalars are."""

    rank: int
    host: str
    stage: str | None
    timeline: int | None
    """None for a rank that has sent no scalar."""
    series: dict[str, int]
    """Name -> number, of the scalars that it has."""


class RankReads:
    """The part of a store that reads all ranks at once; the fields are those of `StoreBase`."""

    _lock: threading.Lock
    _catalog: Catalog

    if TYPE_CHECKING:

        def _snapshot(self, *, is_writer: bool = False) -> AbstractContextManager[Snapshot]: ...

    def rank_scalars(
        self, run: str, names: list[str], steps: StepRange = _ALL_STEPS, max_columns: int = 1000
    ) -> RankScalars:
        """Pool scalars of all ranks to common columns; see `Store.rank_scalars`."""
        with self._lock:
            sources = plan_ranks(self._catalog, run, names)
        with self._snapshot() as snapshot:
            return read_ranks(snapshot, sources, names, steps=steps, max_columns=max(1, max_columns))


def plan_ranks(catalog: Catalog, run: str, names: Sequence[str]) -> list[RankSource]:
    """Return the ranks of a run in order, with those that it must have and that have sent nothing."""
    newest: dict[int, Incarnation] = {}
    for entry in catalog.incarnations.values():
        if entry.run == run and (entry.rank not in newest or entry.number > newest[entry.rank].number):
            newest[entry.rank] = entry
    if not newest:
        return []
    world = max(newest.values(), key=lambda entry: entry.number).description().world_size
    ranks = sorted(newest.keys() | set(range(world if world <= MOST_RANKS else 0)))
    return [_source(catalog, run, rank, newest.get(rank), names) for rank in ranks]


def _source(
    catalog: Catalog, run: str, rank: int, entry: Incarnation | None, names: Sequence[str]
) -> RankSource:
    timeline = catalog.timelines.of_scalars(run, rank)
    if entry is None or timeline is None:
        return RankSource(rank, entry.description().host if entry else "", None, None, {})
    found = {name: catalog.timelines.find_series(timeline, SCALAR, name) for name in names}
    series = {name: number for name, number in found.items() if number is not None}
    return RankSource(rank, entry.description().host, entry.state.stage, timeline, series)


def read_ranks(
    snapshot: Snapshot,
    sources: Sequence[RankSource],
    names: Sequence[str],
    *,
    steps: StepRange,
    max_columns: int,
) -> RankScalars:
    """Read planned ranks. Before the first step there are rows and no columns."""
    wanted = {source.timeline for source in sources if source.timeline is not None}
    blocks = [b for item in snapshot.edge for b in item.scalars if b.timeline in wanted]
    extents = read_extents(snapshot, wanted, blocks)
    spans = [span for extent in extents.values() if (span := extent.clip(steps))]
    if not spans:
        return _answer(sources, names, Grid(0, 1, 0, 1), None)
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    finest = max(extent.finest_level(first, last) for extent in extents.values())
    grid = choose_grid(first, last, max_columns=max_columns, finest=finest)
    parts = _Parts(extents, grid)
    for source in sources:
        if source.timeline is not None:
            parts.add(source.timeline, source.series.values())
    rows = snapshot.rows.rank_scalars(parts.columns, sorted(wanted))
    numbers = [number for source in sources for number in source.series.values()]
    return _answer(sources, names, grid, _newest(rows, _edge_rows(blocks, numbers, grid)))


def read_extents(snapshot: Snapshot, timelines: set[int], blocks: Sequence[ScalarBlock]) -> dict[int, Extent]:
    """Return what each timeline holds; two queries for all of them."""
    chosen = sorted(timelines)
    progress, kept = snapshot.rows.progress(chosen), snapshot.rows.kept(chosen)
    unsettled: dict[int, list[Steps]] = {}
    for block in blocks:
        unsettled.setdefault(block.timeline, []).append(block.frame_steps)
    steps = {timeline: np.unique(np.concatenate(parts)) for timeline, parts in unsettled.items()}
    return {
        timeline: Extent(progress.get(timeline), steps.get(timeline, _NO_STEPS), kept[timeline])
        for timeline in chosen
    }


class _Parts:
    """What is to be read: (series, level, first, end, width) of each part, as columns of a table.

    Rows are pooled to `width` steps. It is 1 where uncommitted steps may replace rows: they come one by one.
    """

    def __init__(self, extents: dict[int, Extent], grid: Grid) -> None:
        self._extents, self._grid = extents, grid
        self._known: dict[tuple[object, ...], list[tuple[Piece, int]]] = {}
        self.columns: list[list[int]] = [[], [], [], [], []]

    def add(self, timeline: int, series: Any) -> None:
        """Have series of a timeline read."""
        pieces = self._pieces(self._extents[timeline])
        for number in series:
            for piece, width in pieces:
                row = (number, piece.level, piece.first, piece.end, width)
                for column, value in zip(self.columns, row, strict=True):
                    column.append(value)

    def _pieces(self, extent: Extent) -> list[tuple[Piece, int]]:
        """Ranks that keep step have the same ones."""
        key = (extent.next_step, extent.raw_floor, extent.unsettled.tobytes(), tuple(extent.kept))
        if key not in self._known:
            pieces = extent.pieces(self._grid)
            self._known[key] = [part for piece in pieces for part in self._split(piece, extent.unsettled)]
        return self._known[key]

    def _split(self, piece: Piece, unsettled: Steps) -> list[tuple[Piece, int]]:
        """Part a piece of raw rows where the uncommitted steps begin."""
        width = self._grid.width
        inside = unsettled[(unsettled >= piece.first) & (unsettled < piece.end)]
        if piece.level != 1 or not len(inside):
            return [(piece, width)]
        at = max(piece.first, int(inside.min()) // width * width)
        settled = [(Piece(1, piece.first, at), width)] if at > piece.first else []
        return [*settled, (Piece(1, at, piece.end), 1)]


def _edge_rows(blocks: Sequence[ScalarBlock], numbers: Sequence[int], grid: Grid) -> Columns:
    """Return the uncommitted values in the form of fetched rows.

    Each rank has blocks of its own: they are looked through together, which one by one takes 0.8 ms each.
    """
    rows = {
        name: np.concatenate([_NO_STEPS, *(getattr(block, name) for block in blocks)])
        for name in ("series", "step", "seq")
    }
    value = np.concatenate([np.empty(0), *(block.value for block in blocks)])
    starts = np.array([block.incarnation for block in blocks], np.int64)
    rows["incarnation"] = np.repeat(starts, [len(block.series) for block in blocks])
    wanted = np.isin(rows["series"], np.array(numbers, np.int64))
    wanted &= (rows["step"] >= grid.first) & (rows["step"] < grid.end)
    rows, value = {name: column[wanted] for name, column in rows.items()}, value[wanted]
    rows["high"] = rows["mean"] = value
    for name, counts in (("finite", np.isfinite), ("nan", np.isnan), ("inf", np.isinf)):
        rows[name] = counts(value).astype(np.int64)
    return rows


def _newest(fetched: Columns, edge: Columns) -> Columns:
    """Of rows of one series and step keep the newest incarnation's last one; pooled rows all stay."""
    rows = {name: np.concatenate([column, edge[name]]) for name, column in fetched.items()}
    if not has_repeated(rows):
        return rows
    single = np.flatnonzero(rows["incarnation"] >= 0)
    order = single[np.lexsort([rows[n][single] for n in ("seq", "incarnation", "step", "series")])]
    series, step = rows["series"][order], rows["step"][order]
    last = np.r_[(series[1:] != series[:-1]) | (step[1:] != step[:-1]), True] if len(order) else order > 0
    chosen = np.r_[np.flatnonzero(rows["incarnation"] < 0), order[last]]
    return {name: column[chosen] for name, column in rows.items()}


def _answer(
    sources: Sequence[RankSource], names: Sequence[str], grid: Grid, rows: Columns | None
) -> RankScalars:
    steps = grid.first + np.arange(grid.columns, dtype=np.int64) * grid.width
    steps.setflags(write=False)
    series = {name: _blank(len(sources), grid) for name in names}
    if rows is not None:
        series |= _pooled_series(sources, list(series), grid, rows)
    return RankScalars(
        ranks=tuple(source.rank for source in sources),
        hosts=tuple(source.host for source in sources),
        stages=tuple(source.stage for source in sources),
        present=tuple(source.timeline is not None for source in sources),
        steps=steps,
        steps_per_column=grid.width,
        series=series,
    )


def _blank(ranks: int, grid: Grid) -> RankSeries:
    """Nothing was measured."""
    size = ranks * grid.columns
    return _frozen(np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, np.uint8), ranks, grid)


def _pooled_series(
    sources: Sequence[RankSource], names: Sequence[str], grid: Grid, rows: Columns
) -> dict[str, RankSeries]:
    """Pool rows into (ranks, columns) arrays of each name; each row is looked up once for all of them."""
    found = [
        (source.series[name], at, place)
        for at, name in enumerate(names)
        for place, source in enumerate(sources)
        if name in source.series
    ]
    if not found:
        return {}
    numbers, of_name, of_rank = np.array(found, np.int64).T
    order = np.argsort(numbers)
    numbers, of_name, of_rank = numbers[order], of_name[order], of_rank[order]
    at = np.minimum(np.searchsorted(numbers, rows["series"]), len(numbers) - 1)
    name_of_row = np.where(numbers[at] == rows["series"], of_name[at], -1)
    cells = of_rank[at] * grid.columns + (rows["step"] - grid.first) // grid.width
    result = {}
    for number, name in enumerate(names):
        mine = np.flatnonzero(name_of_row == number)
        part = {column: rows[column][mine] for column in ("high", "mean", "finite", "nan", "inf")}
        result[name] = _series(cells[mine], part, len(sources), grid)
    return result


def _series(cell: Steps, rows: Columns, ranks: int, grid: Grid) -> RankSeries:
    """Pool the rows of one name, each of which belongs to a cell."""
    size = ranks * grid.columns
    high, flags, finite = np.full(size, np.nan), np.zeros(size, np.uint8), rows["finite"]
    total = np.bincount(cell, finite, size)
    has = finite > 0
    share = finite[has] / total[cell[has]]
    mean = np.where(total > 0, np.bincount(cell[has], rows["mean"][has] * share, size), np.nan)
    np.fmax.at(high, cell[has], rows["high"][has])
    for bit, name in ((SAW_NAN, "nan"), (SAW_INF, "inf")):
        flags[cell[rows[name] > 0]] |= bit
    flags[cell] |= MEASURED
    return _frozen(mean, high, flags, ranks, grid)


def _frozen(mean: _Doubles, high: _Doubles, flags: Flags, ranks: int, grid: Grid) -> RankSeries:
    shape = (ranks, grid.columns)
    for array in (mean, high, flags):
        array.setflags(write=False)
    return RankSeries(mean=mean.reshape(shape), largest=high.reshape(shape), flags=flags.reshape(shape))
