"""Tells damage of the database file from all else that makes a query fail, and reads what is left of it.

Used by `schema.py` and `renewal.py`. A block of the file has a checksum: damage shows as an error when the
block is read, never as a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import duckdb

from .protocol import RunMark, StepNote

_ROOM: Final = (
    "no space left",
    "disk quota",
    "file too large",
    "permission denied",
    "read-only",
    "too many open",
    "cannot allocate memory",
    "out of memory",
    "lock on file",
)
"""What the system says of its own limits."""
_FILE: Final = (
    "corrupt",
    "checksum",
    "could not read",
    "failed to deserialize",
    "deserialize",
    "has been invalidated",
    "input/output error",
    "not a valid duckdb",
)
_MOST_NOTES: Final = 100_000


class Said(NamedTuple):
    """What people have written into a store: no journal has it."""

    marks: dict[str, RunMark] | None = {}  # noqa: RUF012 - never changed
    """Run -> note and star; None where they cannot be read."""
    notes: Sequence[tuple[str, StepNote]] | None = ()
    """(run, note); None where they cannot be read."""


def first_line(error: Exception) -> str:
    """Return what an error says, on one line of at most 200 characters."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def is_about_room(error: duckdb.Error) -> bool:
    """Whether room, memory or a permission is missing: that says nothing about the file."""
    text = str(error).lower()
    return isinstance(error, duckdb.OutOfMemoryException) or any(words in text for words in _ROOM)


def is_corrupt(error: duckdb.Error) -> bool:
    """Whether a block was read that does not have its checksum: nothing else says that."""
    return "corrupt database file" in str(error).lower()


def is_suspicious(error: duckdb.Error) -> bool:
    """Whether the file may be damaged; a query of ours that DuckDB refuses is no reason to think so.

    A database gives up for a full disk too: what the file is like is seen by reading all of it.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return False
    if isinstance(error, duckdb.FatalException | duckdb.InternalException | duckdb.SerializationException):
        return True
    text = str(error).lower()
    return any(words in text for words in _FILE)


def read_everything(database: duckdb.DuckDBPyConnection) -> None:
    """Read every block that holds rows.

    Raises:
        duckdb.Error: one cannot be read.
    """
    query = "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
    for (name,) in database.execute(query).fetchall():
        quoted = str(name).replace('"', '""')
        database.execute(f'SELECT bit_xor(hash(COLUMNS(*))) FROM "{quoted}"').fetchall()


def read_said(database: duckdb.DuckDBPyConnection) -> Said:
    """Return what people have written, as far as it can be read."""
    marks = _rows(database, "SELECT run, note, starred FROM marks")
    notes = _rows(database, f"SELECT run, id, step, text, time FROM notes LIMIT {_MOST_NOTES}")
    return Said(
        marks=None
        if marks is None
        else {str(run): RunMark(note=str(note), starred=bool(starred)) for run, note, starred in marks},
        notes=None
        if notes is None
        else [
            (str(run), StepNote(id=str(number), step=int(step), text=str(text), time=float(time)))
            for run, number, step, text, time in notes
        ],
    )


def _rows(database: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]] | None:
    try:
        rows: list[tuple[Any, ...]] = database.execute(query).fetchall()
    except duckdb.CatalogException:
        return []  # a file of before there were any
    except duckdb.Error:
        return None
    return rows
