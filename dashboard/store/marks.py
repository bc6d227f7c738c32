"""What a person has said of a run: a note, and whether it is kept. Called by `DuckStore`, under its lock."""

from __future__ import annotations

import duckdb

from .protocol import RunMark


def read_marks(cursor: duckdb.DuckDBPyConnection) -> dict[str, RunMark]:
    """Return run -> mark, of the runs that have one."""
    rows = cursor.execute("SELECT run, note, starred FROM marks").fetchall()
    return {str(run): RunMark(note=str(note), starred=bool(starred)) for run, note, starred in rows}


def write_mark(database: duckdb.DuckDBPyConnection, run: str, mark: RunMark) -> None:
    """Save a run's mark in place of its old one."""
    database.execute("DELETE FROM marks WHERE run = ?", [run])
    database.execute("INSERT INTO marks VALUES (?, ?, ?)", [run, mark.note, mark.starred])
