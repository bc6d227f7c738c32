"""The part of `DuckStore` that is not measured step by step: documents, and what people say of runs."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import duckdb

from ..errors import DashboardError
from .documents import document_kinds, read_documents
from .marks import read_marks, write_mark
from .protocol import RunMark, StoredDocument
from .queries import Snapshot
from .schema import explain


class KeptThings:
    """Reads and writes of these; the fields are those of `DuckStore`."""

    _documents_seen: Counter[str]
    _commit_lock: threading.RLock
    _database: duckdb.DuckDBPyConnection

    if TYPE_CHECKING:

        def _snapshot(self) -> AbstractContextManager[Snapshot]: ...

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
            return read_marks(snapshot.cursor)

    def mark_run(self, run: str, *, note: str | None = None, starred: bool | None = None) -> RunMark:
        """Change a run's note or star; see `Store.mark_run`."""
        with self._commit_lock:
            before = self.marks().get(run, RunMark())
            mark = RunMark(
                note=before.note if note is None else note,
                starred=before.starred if starred is None else starred,
            )
            try:
                write_mark(self._database, run, mark)
            except duckdb.Error as error:
                raise DashboardError(explain("cannot write", error)) from error
            return mark

    def documents_mark(self, run: str) -> int:
        """A number that changes with every document of the run; 0 before the first of this process."""
        return self._documents_seen[run]
