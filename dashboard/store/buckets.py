"""Keeps the pyramid: when a commit moves a timeline forward, writes the buckets that close.

Called by `writer.py` inside the commit's transaction. Everything is derived from that transaction's rows,
so a restart needs no state. A closed bucket that gets a repeated step is written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from .owners import supersede_older
from .pyramid import FACTOR, LEVELS, closing, pool_rows
from .retention import RESIDUE, keep_rewritten, kinds_of
from .tensors import (
    POOLED_TABLES,
    Columns,
    Progress,
    SeriesRows,
    fetch_rows,
    flag_blobs,
    group_by_series,
    insert_columns,
    objects,
    read_progress,
    value_blobs,
    without_masks,
)


def advance(
    database: duckdb.DuckDBPyConnection, timeline: int, *, steps: npt.NDArray[np.int64], is_scalar: bool
) -> None:
    """Take the steps just inserted into a timeline: mark what repeats, close buckets, save the progress."""
    progress = read_progress(database, timeline)
    low, high = int(steps.min()), int(steps.max())
    progress = progress or Progress(low, -1, 0)
    before, after = progress.max_step + 1, max(progress.max_step, high) + 1
    repeated = steps[steps < before]
    floor = progress.raw_floor
    again = np.concatenate([repeated, _doubled(steps)])
    for first, end in closing(FACTOR, before=floor, after=floor, touched=repeated):
        keep_rewritten(database, timeline, first=first, end=end, is_scalar=is_scalar)
    if len(again):
        kinds = kinds_of(is_scalar)
        supersede_older(database, timeline, kinds, low=int(again.min()), high=int(again.max()))
    for kind in kinds_of(is_scalar):
        if len(again):
            _mark_superseded(database, f"{kind}_raw", timeline, low=int(again.min()), high=int(again.max()))
        for level in LEVELS[1:]:
            for first, end in closing(level, before=before, after=after, touched=repeated):
                place = _Place(timeline, level, first, end, is_old=first < floor)
                if is_scalar:
                    _close_scalars(database, place)
                else:
                    _close_tensors(database, kind, place)
    database.execute("DELETE FROM progress WHERE timeline=?", [timeline])
    row = [timeline, min(progress.first_step, low), after - 1, floor]
    database.execute("INSERT INTO progress VALUES (?,?,?,?)", row)


@dataclass(frozen=True, slots=True)
class _Place:
    """Buckets of one level to write: steps `[first, end)`."""

    timeline: int
    level: int
    first: int
    end: int
    is_old: bool
    """Raw rows may have been removed here; residue stands for them."""

    @property
    def keys(self) -> dict[str, int]:
        """Parameters of a statement."""
        return {"timeline": self.timeline, "level": self.level, "first": self.first, "end": self.end}


_WHERE: Final = "timeline = $timeline AND level = $level AND step >= $first AND step < $end"


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


def _close_scalars(database: duckdb.DuckDBPyConnection, place: _Place) -> None:
    source, parameters = _FROM_RAW, place.keys
    if place.level > FACTOR:
        source, parameters = _FROM_POOLED, place.keys | {"source_level": place.level // FACTOR}
    elif place.is_old:
        source, parameters = f"{_FROM_RAW} UNION ALL {_FROM_POOLED}", place.keys | {"source_level": RESIDUE}
    rows = database.execute(_POOL_SCALARS.format(source=source), parameters).fetchnumpy()
    database.execute(f"DELETE FROM scalar_pooled WHERE {_WHERE}", place.keys)
    if len(rows["step"]):
        insert_columns(database, "scalar_pooled", without_masks(rows))


def _close_tensors(database: duckdb.DuckDBPyConnection, kind: str, place: _Place) -> None:
    rows = fetch_rows(
        database, kind, place.timeline, level=place.level // FACTOR, first=place.first, end=place.end
    )
    if place.level == FACTOR and place.is_old:
        rows += fetch_rows(database, kind, place.timeline, level=RESIDUE, first=place.first, end=place.end)
    database.execute(f"DELETE FROM {POOLED_TABLES[kind]} WHERE {_WHERE}", place.keys)
    pooled = [_pool(row, place.level) for row in group_by_series(rows)]
    if pooled:
        insert_columns(database, POOLED_TABLES[kind], _pooled_columns(place, pooled))


def _pool(rows: SeriesRows, level: int) -> SeriesRows:
    group, values, flags = pool_rows(rows.step // level, rows.values, rows.flags)
    none = np.full(len(group), -1, np.int64)
    return SeriesRows(
        series=rows.series, step=group * level, incarnation=none, seq=none, values=values, flags=flags
    )


def _pooled_columns(place: _Place, pooled: Sequence[SeriesRows]) -> Columns:
    lengths = [len(rows.step) for rows in pooled]
    return {
        "timeline": np.full(sum(lengths), place.timeline, np.int32),
        "series": np.repeat(np.array([rows.series for rows in pooled], np.int32), lengths),
        "level": np.full(sum(lengths), place.level, np.int64),
        "step": np.concatenate([rows.step for rows in pooled]),
        "data": objects(blob for rows in pooled for blob in value_blobs(rows.values)),
        "flags": objects(blob for rows in pooled for blob in flag_blobs(rows.flags, len(rows.step))),
    }


_FROM_RAW: Final = """
    SELECT series, step, time, 1 AS pooled, isfinite(value)::BIGINT AS finite, isnan(value)::BIGINT AS nan,
        isinf(value)::BIGINT AS inf, value AS min, value AS mean, value AS max
    FROM scalar_raw WHERE timeline = $timeline AND step >= $first AND step < $end AND NOT superseded"""
_FROM_POOLED: Final = """
    SELECT series, step, time, pooled, finite, nan, inf, min, mean, max
    FROM scalar_pooled
    WHERE timeline = $timeline AND level = $source_level AND step >= $first AND step < $end"""
_POOL_SCALARS: Final = """
    SELECT $timeline::INTEGER AS timeline, series, $level::BIGINT AS level, min(step) AS step,
        arg_min(time, step) AS time,
        min(min) FILTER (finite > 0) AS min,
        sum(mean * 1e-15 * finite) FILTER (finite > 0) / sum(finite) * 1e15 AS mean,
        max(max) FILTER (finite > 0) AS max,
        sum(finite)::BIGINT AS finite, sum(nan)::BIGINT AS nan, sum(inf)::BIGINT AS inf,
        sum(pooled)::BIGINT AS pooled
    FROM ({source}) GROUP BY series, (step // $level) ORDER BY series, min(step)"""
