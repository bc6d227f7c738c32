"""The part of a store that is not measured step by step: documents, starts, what people say of runs."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..callers import require_control
from .catalog import Catalog
from .documents import document_kinds, read_documents
from .notes import note_order
from .protocol import RankStart, RunMark, StepNote, StoredDocument
from .queries import Snapshot
from .runs import list_starts


class KeptThings:
    """Reads and writes of these; the fields are those of `StoreBase`."""

    _documents_seen: Counter[str]
    _catalog: Catalog
    _lock: threading.Lock
    _commit_lock: threading.RLock

    if TYPE_CHECKING:

        def _snapshot(self, *, is_writer: bool = False) -> AbstractContextManager[Snapshot]: ...

        def _save_mark(self, run: str, mark: RunMark) -> None: ...

        def _save_note(self, run: str, note: StepNote) -> None: ...

        def _delete_note(self, run: str, note_id: str) -> None: ...

        def _note_change(self, run: str) -> None: ...

        def _mend(self) -> None: ...

    def __init__(self) -> None:
        self._documents_seen = Counter()
        self._notes: dict[str, list[StepNote]] = {}
        """Of the runs that somebody has asked for: a page asks five times a second."""
        self._notes_dropped = 0
        """How often notes have become old; what was read before that is not kept."""

    def documents(self, run: str, kind: str, rank: int | None = None) -> list[StoredDocument]:
        """The newest document of each key, by time; includes uncommitted ones."""
        with self._snapshot() as snapshot:
            return read_documents(snapshot, run, kind, rank=rank)

    def document_kinds(self, run: str) -> list[str]:
        """Kinds of which `documents` has some, sorted."""
        with self._snapshot() as snapshot:
            return document_kinds(snapshot, run)

    def marks(self) -> dict[str, RunMark]:
        """Run -> what a person has said of it, of the runs that have a mark."""
        with self._snapshot() as snapshot:
            return snapshot.rows.marks()

    def mark_run(self, run: str, *, note: str | None = None, starred: bool | None = None) -> RunMark:
        """Change a run's note or star; see `Store.mark_run`."""
        require_control()
        self._mend()
        with self._commit_lock:
            before = self.marks().get(run, RunMark())
            mark = RunMark(
                note=before.note if note is None else note,
                starred=before.starred if starred is None else starred,
            )
            self._save_mark(run, mark)
            return mark

    def notes(self, run: str) -> list[StepNote]:
        """What people have written at steps of a run; see `Store.notes`."""
        found, dropped = self._notes.get(run), self._notes_dropped
        if found is None:
            with self._snapshot() as snapshot:
                read = sorted(snapshot.rows.notes(run), key=note_order)
            # Who writes meanwhile has put newer ones there.
            with self._lock:
                is_new = self._notes_dropped == dropped
                found = self._notes.setdefault(run, read) if is_new else self._notes.get(run, read)
        return list(found)

    def write_note(self, run: str, note: StepNote) -> None:
        """Keep a note; see `Store.write_note`."""
        require_control()
        self._mend()
        with self._commit_lock:
            others = [one for one in self.notes(run) if one.id != note.id]
            self._save_note(run, note)
            self._show_notes(run, [*others, note])

    def remove_note(self, run: str, note_id: str) -> bool:
        """Delete a note; see `Store.remove_note`."""
        require_control()
        self._mend()
        with self._commit_lock:
            before = self.notes(run)
            left = [one for one in before if one.id != note_id]
            if len(left) == len(before):
                return False
            self._delete_note(run, note_id)
            self._show_notes(run, left)
            return True

    def _drop_notes(self, run: str) -> None:
        """Notes of a run are to be read again; under the lock."""
        self._notes.pop(run, None)
        self._notes_dropped += 1

    def _show_notes(self, run: str, notes: list[StepNote]) -> None:
        self._notes[run] = sorted(notes, key=note_order)
        with self._lock:
            self._note_change(run)

    def starts(self, run: str, rank: int = 0) -> list[RankStart]:
        """All incarnations of a rank that have a step, oldest first."""
        with self._lock:
            return list_starts(self._catalog, run, rank)

    def documents_mark(self, run: str) -> int:
        """A number that changes with every document of the run; 0 before the first of this process."""
        return self._documents_seen[run]
