"""Keeps the pyramid: when a commit moves a timeline forward, writes the buckets that close.

Called by `writer.py` inside the commit's transaction. Everything is derived from that transaction's rows,
so a restart needs no state. A closed bucket that gets a repeated step is written anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from .owners import supersede_older
from .pyramid import FACTOR, LEVELS, closing
from .retention import RESIDUE, keep_rewritten, kinds_of
from .tensors import (
    POOLED_TABLES,
    Columns,
    Progress,
    SeriesRows,
    among,
    fetch_rows,
    flag_blobs,
    group_by_series,
    insert_columns,
    objects,
    pool_series,
    read_progress,
    replace_columns,
    value_blobs,
    without_masks,
)
from .timelines import SCALAR

MOST_TIMELINES: Final = 64
"""Timelines whose buckets one statement closes: their raw rows are in memory meanwhile."""


@dataclass(frozen=True, slots=True)
class Move:
    """Steps that were just inserted into a timeline."""

    timeline: int
    steps: npt.NDArray[np.int64]
    is_scalar: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Buckets of one level to write: steps `[first, end)`."""

    kind: str
    level: int
    first: int
    end: int
    is_old: bool
    """Raw rows may have been removed here; residue stands for them."""

    @property
    def keys(self) -> dict[str, int]:
        """Parameters of a statement."""
        return {"level": self.level, "first": self.first, "end": self.end}


def advance(database: duckdb.DuckDBPyConnection, moves: Sequence[Move]) -> None:
    """Take steps into their timelines: mark what repeats, close buckets, save the progress.

    Ranks of one run close the same buckets in one commit, as a rule: what is alike is one statement, of
    which a timeline's share is a tenth of that of a statement of its own.

    Args:
        database: inside the commit's transaction.
        moves: at most one for a timeline.
    """
    if not moves:
        return
    known = read_progress(database, [move.timeline for move in moves])
    places: dict[_Place, list[int]] = defaultdict(list)
    progress = []
    for move in moves:
        low, high = int(move.steps.min()), int(move.steps.max())
        at = known.get(move.timeline) or Progress(low, -1, 0)
        before, after = at.max_step + 1, max(at.max_step, high) + 1
        repeated = move.steps[move.steps < before]
        _settle_repeats(database, move, repeated, floor=at.raw_floor)
        for place in _closing_places(move, repeated, before=before, after=after, floor=at.raw_floor):
            places[place].append(move.timeline)
        progress.append((move.timeline, min(at.first_step, low), after - 1, at.raw_floor))
    # A level is made of the one below.
    for place in sorted(places, key=lambda place: place.level):
        for start in range(0, len(places[place]), MOST_TIMELINES):
            timelines = places[place][start : start + MOST_TIMELINES]
            if place.kind == SCALAR:
                _close_scalars(database, timelines, place)
            else:
                _close_tensors(database, timelines, place)
    columns = np.array(progress, np.int64).T
    names = ("timeline", "first_step", "max_step", "raw_floor")
    replace_columns(database, "progress", dict(zip(names, columns, strict=True)), keys=["timeline"])


def _settle_repeats(
    database: duckdb.DuckDBPyConnection, move: Move, repeated: npt.NDArray[np.int64], *, floor: int
) -> None:
    """Leave one row of each step that has come again, and prepare old buckets for it."""
    again = np.concatenate([repeated, _doubled(move.steps)])
    if not len(again):
        return
    timeline, low, high = move.timeline, int(again.min()), int(again.max())
    for first, end in closing(FACTOR, before=floor, after=floor, touched=repeated):
        keep_rewritten(database, timeline, first=first, end=end, is_scalar=move.is_scalar)
    kinds = kinds_of(move.is_scalar)
    supersede_older(database, timeline, kinds, low=low, high=high)
    for kind in kinds:
        _mark_superseded(database, f"{kind}_raw", timeline, low=low, high=high)


def _closing_places(
    move: Move, repeated: npt.NDArray[np.int64], *, before: int, after: int, floor: int
) -> Iterator[_Place]:
    """Yield what a move closes, or touches of what is closed."""
    for level in LEVELS[1:]:
        for first, end in closing(level, before=before, after=after, touched=repeated):
            for kind in kinds_of(move.is_scalar):
                yield _Place(kind, level, first, end, is_old=first < floor)


_WHERE: Final = "level = $level AND step >= $first AND step < $end"


def _doubled(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the steps that occur more than once."""
    distinct, counts = np.unique(steps, return_counts=True)
    return distinct[counts > 1]


def _mark_superseded(
    database: duckdb.DuckDBPyConnection, table: str, timeline: int, *, low: int, high: int
) -> None:
    """Of rows of one series and step, leave the one of the newest incarnation, then of the last arrival."""
    database.execute(
        f"""UPDATE {table} SET superseded = true
        WHERE timeline = $timeline AND step BETWEEN $low AND $high AND rowid IN (
            SELECT rowid FROM {table}
            WHERE timeline = $timeline AND step BETWEEN $low AND $high AND NOT superseded
            QUALIFY row_number() OVER (PARTITION BY series, step ORDER BY incarnation DESC, seq DESC) > 1)""",
        {"timeline": timeline, "low": low, "high": high},
    )


def _close_scalars(database: duckdb.DuckDBPyConnection, timelines: Sequence[int], place: _Place) -> None:
    source, parameters = _FROM_RAW, place.keys
    if place.level > FACTOR:
        source, parameters = _FROM_POOLED, place.keys | {"source_level": place.level // FACTOR}
    elif place.is_old:
        source, parameters = f"{_FROM_RAW} UNION ALL {_FROM_POOLED}", place.keys | {"source_level": RESIDUE}
    of_these = among(timelines)
    query = _POOL_SCALARS.format(source=source.format(of_these=of_these))
    rows = database.execute(query, parameters).fetchnumpy()
    database.execute(f"DELETE FROM scalar_pooled WHERE {of_these} AND {_WHERE}", place.keys)
    if len(rows["step"]):
        insert_columns(database, "scalar_pooled", without_masks(rows))


def _close_tensors(database: duckdb.DuckDBPyConnection, timelines: Sequence[int], place: _Place) -> None:
    table, levels = POOLED_TABLES[place.kind], [place.level // FACTOR]
    if place.level == FACTOR and place.is_old:
        levels.append(RESIDUE)
    rows = [
        row
        for level in levels
        for row in fetch_rows(database, place.kind, timelines, level=level, first=place.first, end=place.end)
    ]
    database.execute(f"DELETE FROM {table} WHERE {among(timelines)} AND {_WHERE}", place.keys)
    pooled = [pool_series(row, place.level) for row in group_by_series(rows)]
    if pooled:
        insert_columns(database, table, _pooled_columns(place.level, pooled))


def _pooled_columns(level: int, pooled: Sequence[SeriesRows]) -> Columns:
    lengths = [len(rows.step) for rows in pooled]
    return {
        "timeline": np.repeat(np.array([rows.timeline for rows in pooled], np.int32), lengths),
        "series": np.repeat(np.array([rows.series for rows in pooled], np.int32), lengths),
        "level": np.full(sum(lengths), level, np.int64),
        "step": np.concatenate([rows.step for rows in pooled]),
        "data": objects(blob for rows in pooled for blob in value_blobs(rows.values)),
        "flags": objects(blob for rows in pooled for blob in flag_blobs(rows.flags, len(rows.step))),
    }


_FROM_RAW: Final = """
    SELECT timeline, series, step, time, 1 AS pooled, isfinite(value)::BIGINT AS finite,
        isnan(value)::BIGINT AS nan, isinf(value)::BIGINT AS inf, value AS min, value AS mean, value AS max
    FROM scalar_raw WHERE {of_these} AND step >= $first AND step < $end AND NOT superseded"""
_FROM_POOLED: Final = """
    SELECT timeline, series, step, time, pooled, finite, nan, inf, min, mean, max
    FROM scalar_pooled WHERE {of_these} AND level = $source_level AND step >= $first AND step < $end"""
_POOL_SCALARS: Final = """
    SELECT timeline, series, $level::BIGINT AS level, min(step) AS step,
        arg_min(time, step) AS time,
        min(min) FILTER (finite > 0) AS min,
        sum(mean * 1e-15 * finite) FILTER (finite > 0) / sum(finite) * 1e15 AS mean,
        max(max) FILTER (finite > 0) AS max,
        sum(finite)::BIGINT AS finite, sum(nan)::BIGINT AS nan, sum(inf)::BIGINT AS inf,
        sum(pooled)::BIGINT AS pooled
    FROM ({source}) GROUP BY timeline, series, (step // $level) ORDER BY timeline, series, min(step)"""
