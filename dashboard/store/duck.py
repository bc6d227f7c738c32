"""`DuckStore`: the `Store` of one `serve` process, an embedded DuckDB file.

The collector's thread appends and commits; any thread reads. `append` decodes, queues and shows; `commit`
makes durable, positions and rows in one transaction. Each read has its own cursor and sees one consistent
state: a snapshot of the database and the blocks of the live edge that the snapshot lacks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from ..errors import DashboardError
from . import removal, retention
from .base import StoreBase
from .catalog import Catalog
from .changes import SavedRows
from .edge import Pending
from .marks import write_mark
from .mending import Mending
from .notes import delete_note, save_note
from .protocol import RunMark, StepNote
from .queries import Snapshot
from .reading import Reading
from .schema import explain, open_cursor
from .whole_norms import Join

RETENTION_EVERY: Final = 50
"""Commits between two looks at what is old."""


class DuckStore(Mending, StoreBase):
    """Durable home of every run in `folder/nanscope.duckdb`; see `Store` for what the methods mean.

    A file that turns out to be damaged is replaced.
    """

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.time, raw_steps: int = retention.RAW_STEPS
    ) -> None:
        """Open or create the database.

        Args:
            folder: Made if it does not exist, mode 0700.
            clock: UNIX seconds; decides when a rank is silent.
            raw_steps: Newest steps of a rank that are kept one by one; older ones only pooled by 16 and more,
                except around events.

        Raises:
            DashboardError: another process has the file open, or the folder cannot be used.
        """
        StoreBase.__init__(self, clock, raw_steps=raw_steps)
        self._reading = Reading(
            self._lock,
            self._shelf,
            check=self._require_open,
            runs=self._list_runs,
            suspect=self._suspect,
            odd=self._odd,
        )
        Mending.__init__(self, folder, clock)

    def share_looks(self, looks: object) -> None:
        """Nobody else has the file open."""

    def _load_catalog(self, database: duckdb.DuckDBPyConnection) -> Catalog:
        self._odd.clear()
        catalog = Catalog(self._load_layout, self._odd)
        catalog.load(lambda table: _catalog_rows(database, table))
        return catalog

    # -- writing

    def _write(self, saved: SavedRows, taken: Sequence[Pending], joins: Sequence[Join]) -> None:
        """All in one transaction; see `StoreBase._write`."""
        with self._written("cannot write, and tries again"):
            self._transaction(saved, taken, joins)

    def _transaction(self, saved: SavedRows, taken: Sequence[Pending], joins: Sequence[Join]) -> None:
        self._database.execute("BEGIN")
        done = False
        try:
            self._writer.write(saved, taken, joins)
            if self._epoch % RETENTION_EVERY == 0:
                retention.remove_old_rows(self._database, raw_steps=self._raw_steps)
            self._database.execute("UPDATE meta SET epoch = ?", [self._epoch + 1])
            self._database.execute("COMMIT")
            done = True
        finally:
            if not done:
                with contextlib.suppress(duckdb.Error):
                    self._database.execute("ROLLBACK")

    def _committed(self, saved: SavedRows) -> None:
        self._note_runs({row[0] for row in saved.incarnations})

    @contextlib.contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """Say in one sentence what the database has refused."""
        try:
            yield
        except duckdb.Error as error:
            self._suspect(error)
            raise DashboardError(explain(what, error)) from error

    def _save_mark(self, run: str, mark: RunMark) -> None:
        with self._written("cannot write"):
            write_mark(self._database, run, mark)

    def _save_note(self, run: str, note: StepNote) -> None:
        with self._written("cannot write"):
            save_note(self._database, run, note)

    def _delete_note(self, run: str, note_id: str) -> None:
        with self._written("cannot delete"):
            delete_note(self._database, run, note_id)

    def close(self) -> None:
        """Commit what is queued and release the file. Idempotent."""
        with self._lock:
            if self._closed:
                return
        try:
            self.commit()
        finally:
            with self._commit_lock, self._lock:
                self._closed = True
                self._database.close()
                self._root.close()

    def remove_run(self, run: str) -> None:
        """Delete a run; see `Store.remove_run`."""
        self._mend()
        with self._commit_lock:
            with self._lock:
                self._require_open()
                writers = {(run, key.writer) for key in self._catalog.streams if key.run == run}
                before, self._removed = self._removed, self._removed | writers
            try:
                self.commit()
                with self._lock:
                    timelines = self._catalog.timelines.of_run(run)
                removal.remove_rows(self._database, run, timelines)
            except (duckdb.Error, DashboardError) as error:
                self._removed = before
                if isinstance(error, duckdb.Error):
                    self._suspect(error)
                raise DashboardError(explain("cannot delete", error)) from error
            with self._lock:
                self._epoch += 1
                self._edge.forget(self._epoch)
                self._catalog.forget_run(run)
                self._shelf.forget(run)
                self._ranks.forget(run)
                self._items.forget(run)
                self._drop_notes(run)
                self._note_change(run)
            self._known.forget(run)
            removal.give_back_room(self._database)

    # -- reading

    def view(self) -> contextlib.AbstractContextManager[None]:
        """Reads of this thread see one state of the store; see `Store.view`."""
        self._mend()
        return self._reading.view()

    def _snapshot(self, *, is_writer: bool = False) -> contextlib.AbstractContextManager[Snapshot]:
        if not is_writer:
            self._mend()
        return self._reading.snapshot(is_writer=is_writer)

    def _load_layout(self, timeline: int) -> bytes:
        """Return the encoded layout of a timeline; called under the lock."""
        query = "SELECT data FROM layouts WHERE timeline = ? LIMIT 1"
        try:
            row = open_cursor(self._root).execute(query, [timeline]).fetchone()
        except duckdb.Error as error:
            self._suspect(error)
            raise DashboardError(explain("cannot read", error)) from error
        if row is None:
            raise ValueError(f"the data file has lost the layout of timeline {timeline}")
        return bytes(row[0] or b"")


def _catalog_rows(database: duckdb.DuckDBPyConnection, table: str) -> list[tuple[Any, ...]]:
    columns = "run, rank, incarnation, number, timeline, ''::BLOB" if table == "layouts" else "*"
    rows: list[tuple[Any, ...]] = database.execute(f"SELECT {columns} FROM {table}").fetchall()
    return rows
