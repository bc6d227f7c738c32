"""Deletes all rows of a run, and gives their room in the file back. Called by `DuckStore.remove_run`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import duckdb

_BY_RUN: Final = (
    "streams",
    "incarnations",
    "layouts",
    "timelines",
    "events",
    "documents",
    "gaps",
    "marks",
    "notes",
    "host_samples",
)
_BY_TIMELINE: Final = (
    "progress",
    "kept",
    "series",
    "scalar_raw",
    "scalar_pooled",
    "layer_raw",
    "layer_pooled",
    "parameter_raw",
    "parameter_pooled",
    "module_raw",
    "module_pooled",
    "histograms",
)


def remove_rows(database: duckdb.DuckDBPyConnection, run: str, timelines: Sequence[int]) -> None:
    """Delete a run's rows from every table, and count it as a commit; one transaction.

    Raises:
        duckdb.Error: the database refuses; nothing has been deleted.
    """
    database.execute("BEGIN")
    done = False
    try:
        for table in _BY_RUN:
            database.execute(f"DELETE FROM {table} WHERE run = ?", [run])
        for table in _BY_TIMELINE:
            database.execute(f"DELETE FROM {table} WHERE list_contains(?, timeline)", [list(timelines)])
        database.execute("UPDATE meta SET epoch = epoch + 1")
        database.execute("COMMIT")
        done = True
    finally:
        if not done:
            with contextlib.suppress(duckdb.Error):
                database.execute("ROLLBACK")


def give_back_room(database: duckdb.DuckDBPyConnection) -> None:
    """Let the file use the deleted rows' blocks again; later, by itself, where somebody is reading now."""
    with contextlib.suppress(duckdb.Error):
        database.execute("CHECKPOINT")
