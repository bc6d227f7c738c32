"""One commit: timelines, rows, frames, then what is pooled of them, names, progress, and the positions last.

Each step may be repeated, by another collector, too: what a key has is decided by the rows alone. An
acknowledgement is a row of `streams`; whatever it counts was written before it.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..buckets import Move
from ..changes import SavedRows
from ..edge import Pending, ScalarBlock, TensorBlock
from ..tensors import RAW_TABLES, Columns, Progress, flag_blobs, objects, value_blobs
from ..whole_norms import Join, whole_norms
from .connection import Connections
from .pyramid import Pyramid
from .retention import Retention
from .rewritten import RewrittenSteps
from .run_columns import RunColumns
from .schema import now_ns

NO_STEP: Final = -1
"""Stands for no step."""


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
        self._columns_of = RunColumns(run_of)
        self.retention = Retention(database, raw_steps=raw_steps, everywhere=everywhere)
        self.pyramid = Pyramid(database, self._columns_of)
        self._rewritten = RewrittenSteps(database, run_of, self.pyramid, self.retention)

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
        self._rewritten.keep(scalars, tensors)
        self._insert_scalars(scalars)
        self._insert_tensors(tensors)
        self._insert_histograms(pending)
        moves = self._insert_frames(scalars, tensors)
        self._save_events(pending)
        self._save_names(saved)
        moves += joined()
        # Of two collectors that write to different replicas the one that counts frames later knows both.
        self._database.secure()
        progress = self.pyramid.advance(moves)
        self._database.secure()
        self._save_streams(saved)
        self._database.secure()
        return progress

    # -- rows

    def _insert_scalars(self, blocks: Sequence[ScalarBlock]) -> None:
        if not blocks:
            return
        lengths = [len(block.step) for block in blocks]
        columns = self._columns_of([block.timeline for block in blocks], lengths)
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
            columns = self._columns_of([block.timeline for block, _ in chosen], lengths)
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
        columns = self._columns_of([row.timeline for row in rows], [1] * len(rows))
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
        columns = self._columns_of([timeline for timeline, _, _ in distinct], lengths)
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
        columns = self._columns_of([join.timeline], [len(norms["step"])])
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


def _distinct(pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the columns of two rows that differ, in order."""
    pairs = pairs[:, np.lexsort(pairs[::-1])]
    if not pairs.shape[1]:
        return pairs
    return pairs[:, np.r_[True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)]]
