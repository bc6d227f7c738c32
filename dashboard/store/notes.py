"""What people have written at steps of runs. Called by `DuckStore`, under its commit lock.

`notes_of_file` is for a file that no store has open.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import duckdb

from .protocol import StepNote
from .schema import FILE_NAME, opened_to_read


def note_order(note: StepNote) -> tuple[int, float, str]:
    """Sort key: by step, the one written first before others of its step."""
    return note.step, note.time, note.id


def read_notes(cursor: duckdb.DuckDBPyConnection, run: str) -> list[StepNote]:
    """Return the notes of a run by step."""
    rows = cursor.execute("SELECT id, step, text, time FROM notes WHERE run = ?", [run]).fetchall()
    found = [
        StepNote(id=str(id_), step=int(step), text=str(text), time=float(time))
        for id_, step, text, time in rows
    ]
    return sorted(found, key=note_order)


def notes_of_file(folder: Path, run: str) -> list[StepNote]:
    """Return the notes of a run in a store that nobody serves, by step; none where the folder has no store.

    Raises:
        DashboardError: the file is open elsewhere or cannot be read.
    """
    if not (folder / FILE_NAME).exists():
        return []
    with opened_to_read(folder) as database:
        return read_notes(database, run)


def save_note(database: duckdb.DuckDBPyConnection, run: str, note: StepNote) -> None:
    """Save a note in place of the one with its id, in one transaction.

    Raises:
        duckdb.Error: the database refuses; the note before is still there.
    """
    database.execute("BEGIN")
    done = False
    try:
        delete_note(database, run, note.id)
        row = [run, note.id, note.step, note.text, note.time]
        database.execute("INSERT INTO notes (run, id, step, text, time) VALUES (?, ?, ?, ?, ?)", row)
        database.execute("COMMIT")
        done = True
    finally:
        if not done:
            with contextlib.suppress(duckdb.Error):
                database.execute("ROLLBACK")


def delete_note(database: duckdb.DuckDBPyConnection, run: str, note_id: str) -> None:
    """Delete a note."""
    database.execute("DELETE FROM notes WHERE run = ? AND id = ?", [run, note_id])
