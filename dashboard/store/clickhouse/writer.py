"""One commit: timelines, rows, frames, then what is pooled of them, names, progress, and the positions last.

Each step may be repeated, by another collector, too: what a key has is decided by the rows alone. A pooled
row's version is the number of frames known in its bucket, which are read before the rows: the row that knows
most stays. An acknowledgement is a row of `streams`; whatever it counts was written before it.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..buckets import Move
from ..catalog import SCALAR, SavedRows
from ..edge import Pending, ScalarBlock, TensorBlock
from ..pyramid import FACTOR, LEVELS, closing, join_ranges, uncovered
from ..retention import RESIDUE, kinds_of
from ..tensors import (
    POOLED_TABLES,
    RAW_TABLES,
    Columns,
    Progress,
    SeriesRows,
    flag_blobs,
    group_by_series,
    objects,
    pool_series,
    value_blobs,
)
from ..whole_norms import Join, whole_norms
from .connection import Connections
from .numbers import among
from .retention import Retention, blocks_of
from .rows import POOLED, REWRITTEN, ClickRows, as_pooled
from .schema import now_ns, number_of

MOST_TIMELINES: Final = 64
"""Timelines whose buckets are closed together: their raw rows are in memory meanwhile."""
_EPOCH_MS: Final = 1_577_836_800_000
"""2020, in ms: what is left fits into 40 bits until 2054."""
NO_STEP: Final = -1
"""Stands for no step."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Buckets of one level to write: steps `[first, end)`."""

    kind: str
    level: int
    first: int
    end: int
    was_closed: bool
    """There may be rows of them already, and raw rows may have been removed."""


def _now_ms() -> int:
    return time.time_ns() // 10**6 - _EPOCH_MS


@dataclass(frozen=True, slots=True)
class _Known:
    """What a pooled row stands on."""

    frames: dict[tuple[int, int], int]
    """Of each timeline in each bucket."""
    milliseconds: int
    """When that was asked for, before what is below was read: who reads later knows as much or more."""


class Writer:
    """Writes commits. Keeps nothing that the database does not hold.

    Args:
        database: To write to.
        run_of: Returns the run of a timeline.
        raw_steps: Newest steps of a rank that are kept one by one.
        everywhere: All servers of the store; None: this is the only one.
    """

    def __init__(
        self,
        database: Connections,
        run_of: Callable[[int], str],
        *,
        raw_steps: int,
        everywhere: Sequence[Connections] | None = None,
    ) -> None:
        self._database = database
        self._run_of = run_of
        self._rows = ClickRows(database)
        self.retention = Retention(database, raw_steps=raw_steps, everywhere=everywhere)

    def write(
        self, saved: SavedRows, pending: Sequence[Pending], joined: Callable[[], Iterable[Move]] = tuple
    ) -> dict[int, Progress]:
        """Write everything; return how far timelines are now.

        Args:
            saved: Names and positions.
            pending: Rows.
            joined: Puts together what it can once the rows are there, and says what it has written here.
        """
        scalars = [block for item in pending for block in item.scalars]
        tensors = [block for item in pending for block in item.tensors]
        # Before their rows: who drops what is left of a deleted run leaves one that has come back.
        self._put("timelines", ("timeline", "run", "rank", "digest"), saved.timelines, now_ns())
        self._keep_rewritten(scalars, tensors)
        self._insert_scalars(scalars)
        self._insert_tensors(tensors)
        self._insert_histograms(pending)
        moves = self._insert_frames(scalars, tensors)
        self._save_events(pending)
        self._save_names(saved)
        moves += joined()
        # Of two collectors that write to different replicas the one that counts frames later knows both.
        self._database.secure()
        progress = self.advance(moves)
        self._database.secure()
        self._save_streams(saved)
        self._database.secure()
        return progress

    # -- rows

    def _runs(self, timelines: Sequence[int], lengths: Sequence[int]) -> Columns:
        """Return the columns run and timeline of blocks of so many rows."""
        known = {timeline: number_of("run", self._run_of(timeline)) for timeline in set(timelines)}
        return {
            "run": np.repeat(np.array([known[timeline] for timeline in timelines], np.int64), lengths),
            "timeline": np.repeat(np.array(timelines, np.int64), lengths),
        }

    def _insert_scalars(self, blocks: Sequence[ScalarBlock]) -> None:
        if not blocks:
            return
        lengths = [len(block.step) for block in blocks]
        columns = self._runs([block.timeline for block in blocks], lengths)
        for name in ("series", "step", "seq", "time", "value"):
            columns[name] = np.concatenate([getattr(block, name) for block in blocks])
        columns["incarnation"] = np.repeat([block.incarnation for block in blocks], lengths).astype(np.int64)
        self._database.insert("scalar_raw", columns)

    def _insert_tensors(self, blocks: Sequence[TensorBlock]) -> None:
        for kind, table in RAW_TABLES.items():
            chosen = [(block, rows) for block in blocks for rows in block.rows if rows.kind == kind]
            if not chosen:
                continue
            lengths = [len(rows.step) for _, rows in chosen]
            columns = self._runs([block.timeline for block, _ in chosen], lengths)
            numbers = {
                "series": [rows.series for _, rows in chosen],
                "incarnation": [block.incarnation for block, _ in chosen],
            }
            for name, values in numbers.items():
                columns[name] = np.repeat(np.array(values, np.int64), lengths)
            for name in ("step", "seq"):
                columns[name] = np.concatenate([getattr(rows, name) for _, rows in chosen])
            columns["data"] = objects(blob for _, rows in chosen for blob in value_blobs(rows.values))
            columns["flags"] = objects(
                blob for _, rows in chosen for blob in flag_blobs(rows.flags, len(rows.step))
            )
            self._database.insert(table, columns)

    def _insert_histograms(self, pending: Sequence[Pending]) -> None:
        rows = [row for item in pending for row in item.histograms]
        if not rows:
            return
        columns = self._runs([row.timeline for row in rows], [1] * len(rows))
        for name in ("series", "step", "incarnation", "seq"):
            columns[name] = np.array([getattr(row, name) for row in rows], np.int64)
        columns["data"] = objects(zlib.compress(row.data, 1) for row in rows)
        self._database.insert("histograms", columns)

    def _insert_frames(self, scalars: Sequence[ScalarBlock], tensors: Sequence[TensorBlock]) -> list[Move]:
        """Note which start has which step; after their rows."""
        found: list[tuple[int, int, npt.NDArray[np.int64]]] = []
        steps: dict[tuple[int, bool], list[npt.NDArray[np.int64]]] = defaultdict(list)
        for block in scalars:
            pairs = np.stack([block.step, block.seq])
            bare = block.frame_steps[~np.isin(block.frame_steps, block.step)]
            more = np.stack([bare, np.zeros(len(bare), np.int64)])
            found.append((block.timeline, block.incarnation, np.concatenate([pairs, more], axis=1)))
            steps[block.timeline, True].append(block.frame_steps)
        for tensor in tensors:
            parts = [np.stack([rows.step, rows.seq]) for rows in tensor.rows]
            empty = np.empty((2, 0), np.int64)
            found.append((tensor.timeline, tensor.incarnation, np.concatenate([empty, *parts], axis=1)))
            steps[tensor.timeline, False].append(tensor.step)
        distinct = [(timeline, number, _distinct(pairs)) for timeline, number, pairs in found]
        if not distinct:
            return []
        lengths = [pairs.shape[1] for _, _, pairs in distinct]
        columns = self._runs([timeline for timeline, _, _ in distinct], lengths)
        columns["step"] = np.concatenate([pairs[0] for _, _, pairs in distinct])
        columns["incarnation"] = np.repeat(np.array([n for _, n, _ in distinct], np.int64), lengths)
        columns["seq"] = np.concatenate([pairs[1] for _, _, pairs in distinct])
        self._database.insert("frames", columns)
        return [
            Move(timeline, np.concatenate(parts), is_scalar)
            for (timeline, is_scalar), parts in steps.items()
            if sum(map(len, parts))
        ]

    def put_norms(self, join: Join, parts: Columns) -> list[Move]:
        """Write the whole norms of the steps of which all parts are there.

        Args:
            join: Of a rank that lies here.
            parts: Raw rows of all its ranks.
        """
        inside = np.isin(parts["step"], join.steps)
        norms = whole_norms({name: column[inside] for name, column in parts.items()}, join)
        if not len(norms["step"]):
            return []
        columns = self._runs([join.timeline], [len(norms["step"])])
        names = ("series", "step", "incarnation", "seq", "time", "value")
        self._database.insert("scalar_raw", columns | {name: norms[name] for name in names})
        # What is put together comes without a frame: it may be later than the bucket's.
        return [Move(join.timeline, norms["step"], is_scalar=True)]

    # -- names

    def _save_events(self, pending: Sequence[Pending]) -> None:
        version = now_ns()
        latest = {
            (event.run, event.id, *((item.writer, seq) if seq is not None else ("", version))): (event, data)
            for item in pending
            for (event, data), seq in zip(item.events, item.event_seqs, strict=True)
        }
        self._database.run_rows(
            "events",
            ("run", "id", "writer", "seq", "rank", "incarnation", "step", "severity", "data", "version"),
            [
                (*key, event.rank, event.incarnation, event.step, event.severity, data, version + number)
                for number, (key, (event, data)) in enumerate(latest.items())
            ],
        )
        self._database.run_rows(
            "host_samples",
            ("run", "rank", "incarnation", "time", "data", "version"),
            [(*row, version) for item in pending for row in item.host_samples],
        )
        documents = {
            found.identity: (found.document, seq)
            for item in pending
            for found, seq in zip(item.documents, item.document_seqs, strict=True)
        }
        self._database.run_rows(
            "documents",
            ("run", "rank", "incarnation", "kind", "key", "step", "time", "data", "seq", "version"),
            [
                (*identity, NO_STEP if one.step is None else one.step, one.time, one.body, seq, version)
                for identity, (one, seq) in documents.items()
            ],
        )

    def _save_names(self, saved: SavedRows) -> None:
        version = now_ns()
        self._put(
            "layouts", ("run", "rank", "incarnation", "number", "timeline", "data"), saved.layouts, version
        )
        series = [(self._run_of(row[1]), *row) for row in saved.series]
        self._put("series", ("run", "series", "timeline", "kind", "name"), series, version)
        gaps = [
            (
                *(gap.run, gap.writer, gap.source, gap.first_seq, gap.end_seq, gap.reason),
                *(NO_STEP if step is None else step for step in (gap.first_step, gap.last_step)),
                gap.known(),
            )
            for gap in saved.gaps
        ]
        of_gaps = ("run", "writer", "source", "first_seq", "end_seq", "reason", "first_step", "last_step")
        self._put("gaps", (*of_gaps, "known"), gaps, version)
        of_starts = ("run", "rank", "incarnation", "start", "state", "part", "known")
        # Of each part the row that knows most stays: a collector may know more of one, and less of the other.
        starts = [
            (*row, part, known)
            for row, both in zip(saved.incarnations, saved.known, strict=True)
            for part, known in zip(("frames", "words"), both, strict=True)
        ]
        self._put("incarnations", of_starts, starts, version)

    def _put(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]], version: int) -> None:
        self._database.run_rows(table, (*names, "version"), [(*row, version) for row in rows])

    def _save_streams(self, saved: SavedRows) -> None:
        written = now_ns()
        self._database.run_rows(
            "streams",
            ("run", "writer", "stream", "next_seq", "stored", "gaps", "dropped", "written"),
            [(key.run, key.writer, key.stream, *account, written) for key, account in saved.streams],
        )

    # -- pyramid

    def advance(self, moves: Sequence[Move]) -> dict[int, Progress]:
        """Close the buckets that frames have come to the end of, write again those that they touch."""
        if not moves:
            return {}
        known = self._rows.progress(sorted({move.timeline for move in moves}))
        places: dict[_Place, list[int]] = defaultdict(list)
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
        counted: dict[tuple[object, ...], _Known] = {}
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
        columns = self._runs(list(progress), [1] * len(progress))
        columns["first_step"] = np.array([at.first_step for at in progress.values()], np.int64)
        columns["max_step"] = np.array([at.max_step for at in progress.values()], np.int64)
        self._database.insert("progress", columns)
        return progress

    def _known_frames(self, timelines: Sequence[int], place: _Place) -> _Known:
        """Return how many frames each timeline has in each bucket; asked for before their rows."""
        milliseconds = _now_ms()
        query = f"""SELECT timeline, intDiv(step, {place.level}) AS bucket, count() FROM
            (SELECT DISTINCT timeline, step, incarnation, seq FROM frames WHERE {among(timelines)}
            AND step >= {place.first} AND step < {place.end}) AS distinct_frames
            GROUP BY timeline, bucket"""
        counts = {(timeline, bucket): count for timeline, bucket, count in self._database.rows(query)}
        return _Known(counts, milliseconds)

    def _versions(self, known: _Known, rows: Columns, level: int) -> npt.NDArray[np.int64]:
        """Return the number of frames known in the bucket of each row; of two equal ones the later counts."""
        pairs = zip(rows["timeline"].tolist(), (rows["step"] // level).tolist(), strict=True)
        counts = np.array([known.frames.get(pair, 0) for pair in pairs], np.int64)
        return (counts << 40) | known.milliseconds

    def _close_scalars(
        self,
        timelines: Sequence[int],
        place: _Place,
        known: _Known,
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
        self._insert_pooled(pooled, place.level)
        if place.was_closed:
            before = self._rows.pooled_scalars(timelines, None, level=place.level, first=first, end=end)
            self._insert_pooled(
                _without_rows(before, pooled, self._versions(known, before, place.level)), place.level
            )

    def _insert_pooled(self, pooled: Columns, level: int) -> None:
        if not len(pooled["step"]):
            return
        columns = self._runs(pooled["timeline"].tolist(), [1] * len(pooled["step"]))
        columns["level"] = np.full(len(pooled["step"]), level, np.int64)
        chosen = {name: pooled[name] for name in POOLED if name != "timeline"}
        self._database.insert("scalar_pooled", columns | chosen)

    # -- steps that are written again after their raw rows were removed

    def _keep_rewritten(self, scalars: Sequence[ScalarBlock], tensors: Sequence[TensorBlock]) -> None:
        """Before their rows come: put by what stands for the removed ones, and note where that is, once."""
        steps = [(block.timeline, True, block.frame_steps) for block in scalars]
        steps += [(block.timeline, False, block.step) for block in tensors]
        known = self._rows.progress(sorted({timeline for timeline, _, _ in steps}))
        old = [
            (timeline, is_scalar, part[part < known[timeline].raw_floor])
            for timeline, is_scalar, part in steps
            if timeline in known
        ]
        old = [each for each in old if len(each[2])]
        if not old:
            return
        kept = self._rows.kept(sorted({timeline for timeline, _, _ in old}))
        fresh: dict[tuple[int, bool], set[tuple[int, int]]] = defaultdict(set)
        for timeline, is_scalar, part in old:
            for bucket in np.unique(part // FACTOR).tolist():
                first = bucket * FACTOR
                if gaps := uncovered(kept[timeline], first, first + FACTOR):
                    fresh[timeline, is_scalar].update(gaps)
        blocks: dict[str, set[int]] = defaultdict(set)
        for (timeline, _), ranges in fresh.items():
            blocks[self._run_of(timeline)].update(blocks_of([first for first, _ in ranges]))
        for run, numbers in blocks.items():
            self.retention.clear(run, numbers)
        for (timeline, is_scalar), ranges in fresh.items():
            for first, end in join_ranges(sorted(ranges)):
                for kind in kinds_of(is_scalar):
                    self._put_by(timeline, _Place(kind, RESIDUE, first, end, was_closed=True))
                self.retention.note(self._run_of(timeline), timeline, [(first, end)], REWRITTEN)

    def _put_by(self, timeline: int, place: _Place) -> None:
        nothing = _Known({}, _now_ms())
        first, end = place.first, place.end
        if place.kind == SCALAR:
            there = self._rows.pooled_scalars([timeline], None, level=FACTOR, first=first, end=end)
            self._insert_pooled(there, RESIDUE)
            left = self._rows.pooled_scalars(
                [timeline], None, level=RESIDUE, first=first, end=end, is_all=True
            )
            self._insert_pooled(_without_rows(left, there, left["version"] + 1), RESIDUE)
        else:
            rows = self._rows.tensor_rows(place.kind, [timeline], level=FACTOR, first=first, end=end)
            written = self._insert_tensor_rows(place.kind, RESIDUE, rows, nothing)
            before = self._rows.tensor_rows(
                place.kind, [timeline], level=RESIDUE, first=first, end=end, is_all=True
            )
            self._empty_tensor_rows(place, before, written, nothing)

    def _residue(self, timelines: Sequence[int], place: _Place) -> Columns:
        """Return what stands for raw rows that were removed."""
        return _renamed(
            self._rows.pooled_scalars(timelines, None, level=RESIDUE, first=place.first, end=place.end)
        )

    def _close_tensors(
        self,
        timelines: Sequence[int],
        place: _Place,
        known: _Known,
        *,
        is_old: bool,
    ) -> None:
        below, first, end = place.level // FACTOR, place.first, place.end
        rows = self._rows.tensor_rows(place.kind, timelines, level=below, first=first, end=end, is_old=is_old)
        if place.level == FACTOR and is_old:
            rows += self._rows.tensor_rows(place.kind, timelines, level=RESIDUE, first=first, end=end)
        pooled = [pool_series(row, place.level) for row in group_by_series(rows)]
        written = self._insert_tensor_rows(place.kind, place.level, pooled, known)
        if place.was_closed:
            before = self._rows.tensor_rows(place.kind, timelines, level=place.level, first=first, end=end)
            self._empty_tensor_rows(place, before, written, known)

    def _insert_tensor_rows(
        self, kind: str, level: int, pooled: Sequence[SeriesRows], known: _Known
    ) -> set[tuple[int, int]]:
        """Write pooled rows; return (series, step) of each."""
        if not pooled:
            return set()
        lengths = [len(rows.step) for rows in pooled]
        columns = self._runs([rows.timeline for rows in pooled], lengths)
        columns["level"] = np.full(sum(lengths), level, np.int64)
        columns["series"] = np.repeat(np.array([rows.series for rows in pooled], np.int64), lengths)
        columns["step"] = np.concatenate([rows.step for rows in pooled])
        columns["version"] = self._versions(known, columns, max(level, FACTOR))
        columns["data"] = objects(blob for rows in pooled for blob in value_blobs(rows.values))
        columns["flags"] = objects(blob for rows in pooled for blob in flag_blobs(rows.flags, len(rows.step)))
        self._database.insert(POOLED_TABLES[kind], columns)
        return set(zip(columns["series"].tolist(), columns["step"].tolist(), strict=True))

    def _empty_tensor_rows(
        self,
        place: _Place,
        before: Sequence[SeriesRows],
        written: Collection[tuple[int, int]],
        known: _Known,
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
            columns = self._runs(timelines, [1] * len(gone))
            columns |= {"series": np.array(series, np.int64), "step": np.array(steps, np.int64)}
            columns["level"] = np.full(len(gone), place.level, np.int64)
            columns["version"] = self._versions(known, columns, max(place.level, FACTOR))
            columns["data"] = columns["flags"] = objects([b""] * len(gone))
            self._database.insert(POOLED_TABLES[place.kind], columns)


def _distinct(pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the columns of two rows that differ, in order."""
    pairs = pairs[:, np.lexsort(pairs[::-1])]
    if not pairs.shape[1]:
        return pairs
    return pairs[:, np.r_[True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)]]


def _places(move: Move, touched: npt.NDArray[np.int64], *, before: int, after: int) -> Iterator[_Place]:
    """Yield what a move closes, or touches of what is closed."""
    for level in LEVELS[1:]:
        for first, end in closing(level, before=before, after=after, touched=touched):
            for kind in kinds_of(move.is_scalar):
                yield _Place(kind, level, first, end, was_closed=first < before // level * level)


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


def _without_rows(before: Columns, pooled: Columns, versions: npt.NDArray[np.int64]) -> Columns:
    """Return rows that stand for nothing, in place of those that have not been written again."""
    written = set(zip(pooled["series"].tolist(), pooled["step"].tolist(), strict=True))
    keys = zip(before["series"].tolist(), before["step"].tolist(), strict=True)
    gone = np.array([key not in written for key in keys], np.bool_)
    rows = {name: column[gone] for name, column in before.items()}
    for name in ("finite", "nans", "infs", "pooled"):
        rows[name] = np.zeros(int(gone.sum()), np.int64)
    rows["version"] = versions[gone]
    return rows
