"""Gives reads their snapshots, one read at a time: whatever writes competes with one reader, not with all.

Used by `DuckStore`, on any thread. A thread that looks at a view has one snapshot for all reads in it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import duckdb

from ..errors import DashboardError
from .duck_rows import DuckRows
from .edge import Edge
from .event_shelf import EventShelf
from .odd_rows import OddRows
from .protocol import RunSummary
from .queries import Snapshot
from .schema import explain, open_cursor, read_epoch


class Reading:
    """The snapshots of one store."""

    def __init__(
        self,
        lock: threading.Lock,
        shelf: EventShelf,
        *,
        check: Callable[[], None],
        runs: Callable[[], list[RunSummary]],
        suspect: Callable[[duckdb.Error], None],
        odd: OddRows,
    ) -> None:
        """Make it.

        Args:
            lock: The store's, which is held only for looking up; it guards what follows.
            shelf: Knows whether there are new events.
            check: Raises where the store is closed.
            runs: Returns the runs as a view shows them.
            suspect: Takes an error that may come of damage.
            odd: Takes the rows that cannot be read.
        """
        self._lock, self._shelf, self._odd = lock, shelf, odd
        self._check, self._runs, self._suspect = check, runs, suspect
        self._turn, self._writers_turn = threading.Lock(), threading.Lock()
        self._mine = threading.local()

    def begin(self, root: duckdb.DuckDBPyConnection, edge: Edge) -> None:
        """Read from this database, which lacks what the edge has; while nobody reads."""
        self._root, self._edge = root, edge

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Nobody reads inside the block; who reads now ends first. Not inside a view."""
        with self._turn, self._writers_turn:
            yield

    def is_held(self) -> bool:
        """Whether this thread looks at a view."""
        return getattr(self._mine, "snapshot", None) is not None

    @contextlib.contextmanager
    def snapshot(self, *, is_writer: bool = False, is_view: bool = False) -> Iterator[Snapshot]:
        """Give a read one consistent state: that of its thread's view, else one of its own.

        Args:
            is_writer: The thread that takes records waits for no other read.
            is_view: Keep the runs as they are at this moment too.

        Raises:
            DashboardError: the store is closed, or the database cannot be read.
        """
        if (held := getattr(self._mine, "snapshot", None)) is not None:
            yield held
            return
        with self._writers_turn if is_writer else self._turn:
            cursor = self._cursor()
            try:
                yield self._begin(cursor, is_view=is_view)
                cursor.execute("ROLLBACK")
            except duckdb.Error as error:
                self._suspect(error)
                raise DashboardError(explain("cannot read", error)) from error
            finally:
                cursor.close()

    @contextlib.contextmanager
    def view(self) -> Iterator[None]:
        """Have all reads of this thread see one state; see `Store.view`."""
        with self.snapshot(is_view=True) as snapshot:
            before = getattr(self._mine, "snapshot", None)
            self._mine.snapshot = snapshot
            try:
                yield
            finally:
                self._mine.snapshot = before

    def _begin(self, cursor: duckdb.DuckDBPyConnection, *, is_view: bool) -> Snapshot:
        """Open a transaction that is not older than the edge can complete."""
        while True:
            cursor.execute("BEGIN TRANSACTION")
            epoch = read_epoch(cursor)
            with self._lock:
                edge = self._edge.beyond(epoch)
                if edge is not None:
                    listed = self._runs() if is_view else None
                    return Snapshot(DuckRows(cursor), edge, self._shelf.mark_of_all, listed, self._odd)
            cursor.execute("ROLLBACK")

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            self._check()
            return open_cursor(self._root)
