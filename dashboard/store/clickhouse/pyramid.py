"""Buckets of 16, 256 and 4,096 steps: closed when frames have come to their end, made again when one is late.

A pooled row's version is the number of frames known in its bucket, which are read before the rows: the row
that knows most stays, whichever collector has written it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ..buckets import Move
from ..pyramid import FACTOR, LEVELS, closing
from ..retention import RESIDUE, kinds_of
from ..tensors import (
    POOLED_TABLES,
    Columns,
    Progress,
    SeriesRows,
    flag_blobs,
    group_by_series,
    objects,
    pool_series,
    value_blobs,
)
from ..timelines import SCALAR
from .connection import Connections
from .numbers import among
from .rows import POOLED, ClickRows, as_pooled
from .run_columns import RunColumns

MOST_TIMELINES: Final = 64
"""Timelines whose buckets are closed together: their raw rows are in memory meanwhile."""
_EPOCH_MS: Final = 1_577_836_800_000
"""2020, in ms: what is left fits into 40 bits until 2054."""


@dataclass(frozen=True, slots=True)
class Place:
    """Buckets of one level to write: steps `[first, end)`."""

    kind: str
    level: int
    first: int
    end: int
    was_closed: bool
    """There may be rows of them already, and raw rows may have been removed."""


def now_ms() -> int:
    """Return the time in ms since 2020."""
    return time.time_ns() // 10**6 - _EPOCH_MS


@dataclass(frozen=True, slots=True)
class Known:
    """What a pooled row stands on."""

    frames: dict[tuple[int, int], int]
    """Of each timeline in each bucket."""
    milliseconds: int
    """When that was asked for, before what is below was read: who reads later knows as much or more."""


class Pyramid:
    """Writes pooled rows. Keeps nothing that the database does not hold.

    Args:
        database: To write to.
        columns_of: Gives rows their run and timeline.
    """

    def __init__(self, database: Connections, columns_of: RunColumns) -> None:
        self._database = database
        self._columns_of = columns_of
        self._rows = ClickRows(database)

    def advance(self, moves: Sequence[Move]) -> dict[int, Progress]:
        """Close the buckets that frames have come to the end of, write again those that they touch."""
        if not moves:
            return {}
        known = self._rows.progress(sorted({move.timeline for move in moves}))
        places: dict[Place, list[int]] = defaultdict(list)
        progress: dict[int, Progress] = {}
        for move in moves:
            low, high = int(move.steps.min()), int(move.steps.max())
            at = known.get(move.timeline) or Progress(low, -1, 0)
            before, after = at.max_step + 1, max(at.max_step, high) + 1
            touched = move.steps[move.steps < before]
            for place in _places(move, touched, before=before, after=after):
                if move.timeline not in places[place]:
                    places[place].append(move.timeline)
            earlier = progress.get(move.timeline, at)
            progress[move.timeline] = Progress(
                min(earlier.first_step, low), max(earlier.max_step, after - 1), at.raw_floor
            )
        counted: dict[tuple[object, ...], Known] = {}
        # A level is made of the one below.
        for place in sorted(places, key=lambda place: place.level):
            for start in range(0, len(places[place]), MOST_TIMELINES):
                timelines = places[place][start : start + MOST_TIMELINES]
                floors = {known[timeline].raw_floor for timeline in timelines if timeline in known}
                is_old = place.first < max(floors, default=0)
                # Layers, parameters and modules have the same frames: they are counted before all their rows.
                key = (*timelines, place.level, place.first, place.end)
                if key not in counted:
                    counted[key] = self._known_frames(timelines, place)
                close = self._close_scalars if place.kind == SCALAR else self._close_tensors
                close(timelines, place, counted[key], is_old=is_old)
        columns = self._columns_of(list(progress), [1] * len(progress))
        columns["first_step"] = np.array([at.first_step for at in progress.values()], np.int64)
        columns["max_step"] = np.array([at.max_step for at in progress.values()], np.int64)
        self._database.insert("progress", columns)
        return progress

    def _known_frames(self, timelines: Sequence[int], place: Place) -> Known:
        """Return how many frames each timeline has in each bucket; asked for before their rows."""
        milliseconds = now_ms()
        query = f"""SELECT timeline, intDiv(step, {place.level}) AS bucket, count() FROM
            (SELECT DISTINCT timeline, step, incarnation, seq FROM frames WHERE {among(timelines)}
            AND step >= {place.first} AND step < {place.end}) AS distinct_frames
            GROUP BY timeline, bucket"""
        counts = {(timeline, bucket): count for timeline, bucket, count in self._database.rows(query)}
        return Known(counts, milliseconds)

    def _versions(self, known: Known, rows: Columns, level: int) -> npt.NDArray[np.int64]:
        """Return the number of frames known in the bucket of each row; of two equal ones the later counts."""
        pairs = zip(rows["timeline"].tolist(), (rows["step"] // level).tolist(), strict=True)
        counts = np.array([known.frames.get(pair, 0) for pair in pairs], np.int64)
        return (counts << 40) | known.milliseconds

    def _close_scalars(
        self,
        timelines: Sequence[int],
        place: Place,
        known: Known,
        *,
        is_old: bool,
    ) -> None:
        first, end, below = place.first, place.end, place.level // FACTOR
        if place.level == FACTOR:
            rows = as_pooled(self._rows.raw_scalars(timelines, None, first=first, end=end, is_old=is_old))
            if is_old:
                rows = _joined(rows, self._residue(timelines, place))
        else:
            rows = _renamed(self._rows.pooled_scalars(timelines, None, level=below, first=first, end=end))
        pooled = pool_scalars(rows, place.level)
        pooled["version"] = self._versions(known, pooled, place.level)
        self.insert_scalars(pooled, place.level)
        if place.was_closed:
            before = self._rows.pooled_scalars(timelines, None, level=place.level, first=first, end=end)
            self.insert_scalars(
                without_rows(before, pooled, self._versions(known, before, place.level)), place.level
            )

    def insert_scalars(self, pooled: Columns, level: int) -> None:
        """Write pooled rows, in the columns of `pool_scalars` and their versions."""
        if not len(pooled["step"]):
            return
        columns = self._columns_of(pooled["timeline"].tolist(), [1] * len(pooled["step"]))
        columns["level"] = np.full(len(pooled["step"]), level, np.int64)
        chosen = {name: pooled[name] for name in POOLED if name != "timeline"}
        self._database.insert("scalar_pooled", columns | chosen)

    def _residue(self, timelines: Sequence[int], place: Place) -> Columns:
        """Return what stands for raw rows that were removed."""
        return _renamed(
            self._rows.pooled_scalars(timelines, None, level=RESIDUE, first=place.first, end=place.end)
        )

    def _close_tensors(
        self,
        timelines: Sequence[int],
        place: Place,
        known: Known,
        *,
        is_old: bool,
    ) -> None:
        below, first, end = place.level // FACTOR, place.first, place.end
        rows = self._rows.tensor_rows(place.kind, timelines, level=below, first=first, end=end, is_old=is_old)
        if place.level == FACTOR and is_old:
            rows += self._rows.tensor_rows(place.kind, timelines, level=RESIDUE, first=first, end=end)
        pooled = [pool_series(row, place.level) for row in group_by_series(rows)]
        written = self.insert_tensors(place.kind, place.level, pooled, known)
        if place.was_closed:
            before = self._rows.tensor_rows(place.kind, timelines, level=place.level, first=first, end=end)
            self.empty_tensors(place, before, written, known)

    def insert_tensors(
        self, kind: str, level: int, pooled: Sequence[SeriesRows], known: Known
    ) -> set[tuple[int, int]]:
        """Write pooled rows; return (series, step) of each."""
        if not pooled:
            return set()
        lengths = [len(rows.step) for rows in pooled]
        columns = self._columns_of([rows.timeline for rows in pooled], lengths)
        columns["level"] = np.full(sum(lengths), level, np.int64)
        columns["series"] = np.repeat(np.array([rows.series for rows in pooled], np.int64), lengths)
        columns["step"] = np.concatenate([rows.step for rows in pooled])
        columns["version"] = self._versions(known, columns, max(level, FACTOR))
        columns["data"] = objects(blob for rows in pooled for blob in value_blobs(rows.values))
        columns["flags"] = objects(blob for rows in pooled for blob in flag_blobs(rows.flags, len(rows.step)))
        self._database.insert(POOLED_TABLES[kind], columns)
        return set(zip(columns["series"].tolist(), columns["step"].tolist(), strict=True))

    def empty_tensors(
        self,
        place: Place,
        before: Sequence[SeriesRows],
        written: Collection[tuple[int, int]],
        known: Known,
    ) -> None:
        """Series that only older starts have, of steps that are now a newer one's, have nothing there."""
        gone = [
            (rows.timeline, rows.series, step)
            for rows in before
            for step in rows.step.tolist()
            if (rows.series, step) not in written
        ]
        if gone:
            timelines, series, steps = (list(part) for part in zip(*gone, strict=True))
            columns = self._columns_of(timelines, [1] * len(gone))
            columns |= {"series": np.array(series, np.int64), "step": np.array(steps, np.int64)}
            columns["level"] = np.full(len(gone), place.level, np.int64)
            columns["version"] = self._versions(known, columns, max(place.level, FACTOR))
            columns["data"] = columns["flags"] = objects([b""] * len(gone))
            self._database.insert(POOLED_TABLES[place.kind], columns)


def _places(move: Move, touched: npt.NDArray[np.int64], *, before: int, after: int) -> Iterator[Place]:
    """Yield what a move closes, or touches of what is closed."""
    for level in LEVELS[1:]:
        for first, end in closing(level, before=before, after=after, touched=touched):
            for kind in kinds_of(move.is_scalar):
                yield Place(kind, level, first, end, was_closed=first < before // level * level)


def pool_scalars(rows: Columns, level: int) -> Columns:
    """Pool rows, in the form of `as_pooled`, to buckets of `level` steps: columns of `scalar_pooled`."""
    bucket = rows["step"] // level
    order = np.lexsort((rows["step"], bucket, rows["series"], rows["timeline"]))
    rows = {name: column[order] for name, column in rows.items()}
    bucket = bucket[order]
    keys = (rows["timeline"], rows["series"], bucket)
    change = np.zeros(max(len(order) - 1, 0), np.bool_)
    for key in keys:
        change |= key[1:] != key[:-1]
    starts = np.flatnonzero(np.r_[True, change]) if len(order) else np.empty(0, np.intp)
    if not len(starts):
        names = ("timeline", "series", "step", "first", "finite", "nans", "infs", "pooled")
        empty: Columns = {name: np.empty(0, np.int64) for name in names}
        return empty | {name: np.empty(0) for name in ("time", "least", "mean", "most")}
    finite = rows["finite"]
    has, count = finite > 0, np.add.reduceat(finite, starts)
    share = finite / np.maximum(np.repeat(count, np.diff(np.r_[starts, len(order)])), 1)
    low = np.minimum.reduceat(np.where(has, rows["min"], np.inf), starts)
    high = np.maximum.reduceat(np.where(has, rows["max"], -np.inf), starts)
    mean = np.add.reduceat(np.where(has, rows["mean"], 0.0) * share, starts)
    return {
        "timeline": rows["timeline"][starts],
        "series": rows["series"][starts],
        "step": bucket[starts] * level,
        "first": rows["step"][starts],
        "time": rows["time"][starts],
        "least": np.where(count > 0, low, np.nan),
        "mean": np.where(count > 0, np.clip(mean, low, np.maximum(low, high)), np.nan),
        "most": np.where(count > 0, high, np.nan),
        "finite": count,
        "nans": np.add.reduceat(rows["nan"], starts),
        "infs": np.add.reduceat(rows["inf"], starts),
        "pooled": np.add.reduceat(rows["pooled"], starts),
    }


def _renamed(pooled: Columns) -> Columns:
    """Return pooled rows under the names of `as_pooled`."""
    names = ("timeline", "series", "time", "mean", "finite", "pooled")
    rows = {name: pooled[name] for name in names}
    rows |= {"step": pooled["first"], "min": pooled["least"], "max": pooled["most"]}
    return rows | {"nan": pooled["nans"], "inf": pooled["infs"]}


def _joined(one: Columns, other: Columns) -> Columns:
    return {name: np.concatenate([one[name], other[name]]) for name in other}


def without_rows(before: Columns, pooled: Columns, versions: npt.NDArray[np.int64]) -> Columns:
    """Return rows that stand for nothing, in place of those that have not been written again."""
    written = set(zip(pooled["series"].tolist(), pooled["step"].tolist(), strict=True))
    keys = zip(before["series"].tolist(), before["step"].tolist(), strict=True)
    gone = np.array([key not in written for key in keys], np.bool_)
    rows = {name: column[gone] for name, column in before.items()}
    for name in ("finite", "nans", "infs", "pooled"):
        rows[name] = np.zeros(int(gone.sum()), np.int64)
    rows["version"] = versions[gone]
    return rows
