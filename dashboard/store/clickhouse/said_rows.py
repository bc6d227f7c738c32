"""What was said, rather than measured: events, documents, marks and notes in a ClickHouse database."""

from __future__ import annotations

from typing import Any, Final

from ..protocol import RunMark, StepNote
from .connection import Connections

_PRESENT: Final = "version > (SELECT max(version) FROM gone_runs WHERE run = %(run)s)"
"""Of a run's rows those that were not written before it was deleted."""


def of_all_runs(table: str, columns: str) -> str:
    """The rows of all runs that were not written before their run was deleted; an `AND` may follow."""
    return f"""(SELECT run, version, {columns} FROM {table} FINAL) AS found
        ANY LEFT JOIN (SELECT run, max(version) AS gone_at FROM gone_runs GROUP BY run) AS gone USING run
        WHERE version > gone_at"""


def text(value: bytes) -> str:
    """Return a string of the server; bytes that are none become signs that say so."""
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return value.decode("utf-8", "replace")


class SaidRows:
    """See `Rows` for what the methods mean.

    Args:
        database: of this thread's clients.
    """

    def __init__(self, database: Connections) -> None:
        self._database = database

    def events(self, run: str, event_id: str | None = None) -> list[tuple[str, bytes | None]]:
        """See `Rows.events`."""
        # Several writers may have spoken of one event: the newest start's last word counts.
        return list({row[2]: row[3] for row in self.event_rows(run, event_id)}.items())

    def event_rows(self, run: str, event_id: str | None = None) -> list[tuple[int, int, str, bytes]]:
        """Return start, version, id and record of what was said of a run's events, in that order."""
        chosen = "" if event_id is None else "AND id = %(id)s"
        query = f"""SELECT incarnation, version, id, data FROM events FINAL WHERE run = %(run)s {chosen}
            AND {_PRESENT} ORDER BY incarnation, version"""
        found = self._database.rows(query, {"run": run, "id": event_id})
        return [(incarnation, version, text(number), data) for incarnation, version, number, data in found]

    def run_of_event(self, event_id: str) -> str | None:
        """See `Rows.run_of_event`."""
        query = f"SELECT run FROM {of_all_runs('events', 'id')} AND id = %(id)s LIMIT 1"
        found = self._database.rows(query, {"id": event_id})
        return text(found[0][0]) if found else None

    def event_counts(self) -> list[tuple[str, str, int]]:
        """See `Rows.event_counts`."""
        rows = of_all_runs("events", "id, incarnation, severity")
        query = f"""SELECT run, newest, count() FROM
            (SELECT run, argMax(severity, (incarnation, version)) AS newest FROM {rows}
            GROUP BY run, id) AS events_once
            GROUP BY run, newest"""
        return [(text(run), text(severity), count) for run, severity, count in self._database.rows(query)]

    def severities(self, run: str, event_id: str) -> list[str]:
        """See `Rows.severities`."""
        return [row[2] for row in self.severity_rows(run, event_id)]

    def severity_rows(self, run: str, event_id: str) -> list[tuple[int, int, str]]:
        """Return start, version and severity of what was said last of an event, if it is there."""
        query = f"""SELECT incarnation, version, severity FROM events FINAL WHERE run = %(run)s
            AND id = %(id)s AND {_PRESENT} ORDER BY incarnation DESC, version DESC LIMIT 1"""
        return [(*row[:2], text(row[2])) for row in self._database.rows(query, {"run": run, "id": event_id})]

    def documents(self, run: str, kind: str) -> list[tuple[Any, ...]]:
        """See `Rows.documents`."""
        return [row[1:] for row in self.document_rows(run, kind)]

    def document_rows(self, run: str, kind: str) -> list[tuple[Any, ...]]:
        """Return the sequence number before what `documents` has."""
        query = f"""SELECT seq, run, rank, incarnation, kind, key, step, time, data FROM documents FINAL
            WHERE run = %(run)s AND kind = %(kind)s AND {_PRESENT}"""
        found = self._database.rows(query, {"run": run, "kind": kind})
        return [
            (seq, text(name), rank, incarnation, text(of), text(key), None if step < 0 else step, time, data)
            for seq, name, rank, incarnation, of, key, step, time, data in found
        ]

    def document_kinds(self, run: str) -> list[str]:
        """See `Rows.document_kinds`."""
        query = f"SELECT DISTINCT kind FROM documents WHERE run = %(run)s AND {_PRESENT}"
        return [text(row[0]) for row in self._database.rows(query, {"run": run})]

    def document_sizes(self, run: str) -> list[tuple[Any, ...]]:
        """See `Rows.document_sizes`."""
        query = f"""SELECT run, rank, incarnation, kind, key, length(data) FROM documents FINAL
            WHERE run = %(run)s AND {_PRESENT}"""
        return [
            (text(name), rank, incarnation, text(kind), text(key), size)
            for name, rank, incarnation, kind, key, size in self._database.rows(query, {"run": run})
        ]

    def marks(self) -> dict[str, RunMark]:
        """See `Rows.marks`."""
        return {run: mark for _, run, mark in self.mark_rows()}

    def mark_rows(self) -> list[tuple[int, str, RunMark]]:
        """Return when each mark was made, its run, and the mark."""
        query = f"SELECT version, run, note, starred FROM {of_all_runs('marks', 'note, starred')}"
        return [
            (version, text(run), RunMark(note=text(note), starred=bool(starred)))
            for version, run, note, starred in self._database.rows(query)
        ]

    def notes(self, run: str) -> list[StepNote]:
        """See `Rows.notes`."""
        return [note for _, is_gone, note in self.note_rows(run) if not is_gone]

    def note_rows(self, run: str) -> list[tuple[int, bool, StepNote]]:
        """Return when each note was written or deleted, whether it was deleted, and the note."""
        query = f"""SELECT version, gone, id, step, text, time FROM notes FINAL WHERE run = %(run)s
            AND {_PRESENT}"""
        return [
            (version, bool(gone), StepNote(id=text(number), step=step, text=text(words), time=time))
            for version, gone, number, step, words, time in self._database.rows(query, {"run": run})
        ]
