"""One commit: saves the catalogue's changes and the edge's blocks, then closes pyramid buckets.

Called by `DuckStore.commit` with the writer connection inside a transaction, on one thread at a time. Rows
are inserted from dictionaries of numpy arrays, which DuckDB scans without pandas or arrow.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from .buckets import Move, advance
from .changes import SavedRows
from .documents import write_documents
from .edge import Pending, ScalarBlock, TensorBlock
from .histograms import insert_histograms
from .schema import column_names
from .tensors import (
    RAW_TABLES,
    Columns,
    flag_blobs,
    insert_columns,
    objects,
    replace_columns,
    value_blobs,
)
from .whole_norms import Join, join_parts


class Writer:
    """Writes commits through one connection. Keeps nothing that the database does not hold."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._database = connection

    def write(self, saved: SavedRows, pending: Sequence[Pending], joins: Sequence[Join] = ()) -> None:
        """Write everything, and what the joins put together of it, inside the caller's transaction."""
        self._save_catalog(saved)
        self._save_events(pending)
        scalars = [block for item in pending for block in item.scalars]
        tensors = [block for item in pending for block in item.tensors]
        self._insert_scalars(scalars)
        self._insert_tensors(tensors)
        insert_histograms(self._database, [row for item in pending for row in item.histograms])
        steps: dict[tuple[int, bool], list[npt.NDArray[np.int64]]] = defaultdict(list)
        for scalar in scalars:
            steps[scalar.timeline, True].append(scalar.frame_steps)
        for tensor in tensors:
            steps[tensor.timeline, False].append(tensor.step)
        moves = [
            Move(timeline, np.concatenate(parts), is_scalar) for (timeline, is_scalar), parts in steps.items()
        ]
        advance(self._database, moves)
        for join in joins:
            if len(joined := join_parts(self._database, join)):
                advance(self._database, [Move(join.timeline, joined, is_scalar=True)])

    # -- catalogue

    def _save_catalog(self, saved: SavedRows) -> None:
        streams = [(key.run, key.writer, key.stream, *account) for key, account in saved.streams]
        self._replace_rows("streams", streams, keys=3)
        self._replace_rows("incarnations", saved.incarnations, keys=3)
        for gap in saved.gaps:
            self._database.execute(
                "DELETE FROM gaps WHERE run=? AND writer=? AND source=? AND first_seq=?",
                [gap.run, gap.writer, gap.source, gap.first_seq],
            )
        self._insert_rows("gaps", [dataclasses.astuple(gap) for gap in saved.gaps])
        self._insert_rows("layouts", saved.layouts)
        self._insert_rows("timelines", saved.timelines)
        self._insert_rows("series", saved.series)

    def _replace_rows(self, table: str, rows: Sequence[Sequence[Any]], *, keys: int) -> None:
        """Insert rows in place of those of which the first `keys` columns are the same."""
        if rows:
            names = column_names(table)
            columns = {
                name: np.array(column, np.int64) if isinstance(column[0], int) else objects(column)
                for name, column in zip(names, zip(*rows, strict=True), strict=True)
            }
            replace_columns(self._database, table, columns, keys=names[:keys])

    def _insert_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _save_events(self, pending: Sequence[Pending]) -> None:
        latest = {(event.run, event.id): (event, data) for item in pending for event, data in item.events}
        for key, (event, data) in latest.items():
            self._database.execute("DELETE FROM events WHERE run=? AND id=?", [*key])
            row = [*key, event.rank, event.incarnation, event.step, event.severity, data]
            self._database.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?)", row)
        self._insert_rows("host_samples", [row for item in pending for row in item.host_samples])
        write_documents(self._database, [found for item in pending for found in item.documents])

    # -- rows

    def _insert_scalars(self, blocks: Sequence[ScalarBlock]) -> None:
        if not blocks:
            return
        lengths = [len(block.step) for block in blocks]
        columns: Columns = {
            "timeline": np.repeat(np.array([block.timeline for block in blocks], np.int32), lengths),
            "series": np.concatenate([block.series for block in blocks]),
            "step": np.concatenate([block.step for block in blocks]),
            "incarnation": np.repeat(np.array([block.incarnation for block in blocks], np.int64), lengths),
            "seq": np.concatenate([block.seq for block in blocks]),
            "superseded": np.zeros(sum(lengths), np.bool_),
            "time": np.concatenate([block.time for block in blocks]),
            "value": np.concatenate([block.value for block in blocks]),
        }
        insert_columns(self._database, "scalar_raw", columns)

    def _insert_tensors(self, blocks: Sequence[TensorBlock]) -> None:
        for kind, table in RAW_TABLES.items():
            chosen = [(block, rows) for block in blocks for rows in block.rows if rows.kind == kind]
            chosen.sort(key=lambda pair: pair[1].series)
            if not chosen:
                continue
            lengths = [len(rows.step) for _, rows in chosen]
            columns: Columns = {
                "timeline": np.repeat(np.array([block.timeline for block, _ in chosen], np.int32), lengths),
                "series": np.repeat(np.array([rows.series for _, rows in chosen], np.int32), lengths),
                "step": np.concatenate([rows.step for _, rows in chosen]),
                "incarnation": np.repeat(np.array([block.incarnation for block, _ in chosen]), lengths),
                "seq": np.concatenate([rows.seq for _, rows in chosen]),
                "superseded": np.zeros(sum(lengths), np.bool_),
                "data": objects(blob for _, rows in chosen for blob in value_blobs(rows.values)),
                "flags": objects(
                    blob for _, rows in chosen for blob in flag_blobs(rows.flags, len(rows.step))
                ),
            }
            insert_columns(self._database, table, columns)
