"""The part of `DuckStore` that replaces a database file which turns out to be damaged, while all goes on.

Who meets a suspicious error only notes it, under the lock that it holds; the next call of any thread, which
holds none, has the file read whole. One that is damaged is set aside, and a new one begins without positions:
helpers and the spool's reader then give again what the journals hold.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from ..errors import DashboardError
from .catalog import Catalog
from .damage import Said, first_line, is_corrupt, is_suspicious
from .edge import Edge
from .event_shelf import EventShelf
from .known_runs import KnownRuns
from .marks import write_mark
from .notes import save_note
from .odd_rows import OddRows
from .protocol import StepNote
from .reading import Reading
from .renewal import Renewal
from .schema import Opened, open_cursor, open_database, read_epoch
from .writer import Writer

MAX_RENEWALS: Final = 3
"""Files that one process sets aside; a disk that damages more of them has to be replaced."""
MAX_EXAMINATIONS: Final = 10
"""Files that one process reads whole."""
RETRY_S: Final = 2.0
"""Between two tries to open a file, while the disk is full or another process has it."""

_log = logging.getLogger(__name__)


class Mending:
    """Opens the database, and replaces it; the fields are those of `DuckStore`."""

    _lock: threading.Lock
    _commit_lock: threading.RLock
    _revisions: Counter[str | None]
    _documents_seen: Counter[str]
    _notes: dict[str, list[StepNote]]
    _closed: bool
    _shelf: EventShelf
    _reading: Reading
    _odd: OddRows

    if TYPE_CHECKING:

        def _load_catalog(self, database: duckdb.DuckDBPyConnection) -> Catalog: ...

        _edge: Edge

        def _note_change(self, run: str) -> None: ...

        def _begin(self) -> None: ...

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """Open or create the database.

        Raises:
            DashboardError: another process has the file open, or the folder cannot be used.
        """
        self._folder = folder
        self._generation = self._renewals = self._examinations = 0
        self._suspicion: tuple[str, bool] | None = None
        """What an error said, and whether nothing but damage says that."""
        self._found_whole: set[str] = set()
        """What was said of files that are not damaged as far as reading them shows."""
        self._problem: DashboardError | None = None
        """Why no database is open just now."""
        self._next_try = 0.0
        self._known = KnownRuns(folder, clock=clock)
        opened = open_database(folder, self._load_catalog)
        self._use(opened)
        self._renewal = self._renewed(opened, opened.problem)

    @property
    def notice(self) -> str | None:
        """What the user must be told about the data file; None if nothing."""
        renewal = self._renewal
        text = "" if renewal is None else renewal.text(self._run_ids())
        return " ".join(part for part in (text, self._odd.text()) if part) or None

    def note_journals(self, runs: Collection[str]) -> None:
        """The journals of these runs have been read, or are shipped by helpers, and there are no others."""
        if (renewal := self._renewal) is None:
            return
        renewal.note_journals(runs)
        if (news := renewal.news(self._run_ids())) is not None:
            _log.warning("%s", news)

    def generation(self) -> int:
        """How often positions have gone back because a file was replaced; see `Store.generation`."""
        with contextlib.suppress(DashboardError):
            self._mend()
        return self._generation

    def _suspect(self, error: duckdb.Error) -> None:
        """Note an error that may come of damage; under the lock of what has met it."""
        if not is_suspicious(error) or self._renewals >= MAX_RENEWALS:
            return
        if self._examinations < MAX_EXAMINATIONS:
            self._suspicion = first_line(error), is_corrupt(error)

    def _mend(self) -> None:
        """Examine the file if there is reason to, and replace it if it is damaged; without any lock.

        Raises:
            DashboardError: no database can be opened just now.
        """
        if self._suspicion is None or self._reading.is_held():
            return
        with self._commit_lock, self._reading.stopped(), self._lock:
            if self._suspicion is None or self._closed:
                return
            if self._problem is not None and time.monotonic() < self._next_try:
                raise self._problem
            self._replace(*self._suspicion)

    def _replace(self, suspicion: str, is_certain: bool) -> None:
        if self._problem is None:
            _log.error("The data file gave an error and is read whole: %s", suspicion)
        self._known.note(self._names())
        before = self._run_ids()
        self._close_database()
        try:
            opened = open_database(
                self._folder,
                self._load_catalog,
                suspicion=suspicion,
                is_certain=is_certain and suspicion in self._found_whole,
            )
        except DashboardError as error:
            self._problem, self._next_try = error, time.monotonic() + RETRY_S
            raise
        self._problem = self._suspicion = None
        self._examinations += 1
        self._renewals += opened.is_new
        if not opened.is_new:
            self._found_whole.add(suspicion)
        self._use(opened)
        self._generation += 1
        for run in before | self._run_ids():
            self._shelf.forget(run)
            self._documents_seen[run] += 1
            self._note_change(run)
        if opened.problem is not None:
            self._renewal = self._renewed(opened, opened.problem)

    def _use(self, opened: Opened[Catalog]) -> None:
        """Begin with a database; the fields that say what it holds are new."""
        self._begin()
        self._root = opened.connection
        self._catalog = opened.loaded
        self._database = open_cursor(self._root)
        self._writer = Writer(self._database)
        self._epoch = read_epoch(self._database)
        self._reading.begin(self._root, self._edge)

    def _renewed(self, opened: Opened[Catalog], problem: str | None) -> Renewal | None:
        """Keep what people have said; return what there is to tell."""
        said = self._kept(opened.said) if problem is not None else None
        present = self._run_ids()
        missing = self._known.missing_in(present)
        self._known.note(self._names())
        if problem is None and not missing:
            return None
        if problem is None:
            problem = (
                f"The data file of {self._folder} is gone; a new one was started."
                if opened.is_new
                else "Runs that this data folder had are not in the data file any more."
            )
        if self._renewals >= MAX_RENEWALS:
            problem += " That was the last time before the next start: the disk may be failing, see --data."
        _log.error("%s", problem)
        return Renewal(problem, missing, said)

    def _note_runs(self, runs: Collection[str]) -> None:
        """A commit has these runs: whose name is new is noted beside the file."""
        if new := [run for run in runs if not self._known.has(run)]:
            with self._lock:
                names = self._names()
            self._known.note({run: names[run] for run in new if run in names})

    def _kept(self, said: Said) -> Said:
        """Write what people had said into the new file."""
        try:
            for run, mark in (said.marks or {}).items():
                write_mark(self._database, run, mark)
            for run, note in said.notes or ():
                save_note(self._database, run, note)
        except duckdb.Error:
            return Said(None, None)
        return said

    def _close_database(self) -> None:
        """Release the file as it is: nothing is written into one that may be damaged."""
        with contextlib.suppress(duckdb.Error):
            self._root.execute("PRAGMA disable_checkpoint_on_shutdown")
        for connection in (self._database, self._root):
            with contextlib.suppress(duckdb.Error):
                connection.close()

    def _run_ids(self) -> set[str]:
        return {key[0] for key in list(self._catalog.incarnations)}

    def _names(self) -> dict[str, str]:
        """Return the name of every run by its id."""
        found: dict[str, str] = {}
        for (run, _, _), entry in self._catalog.incarnations.items():
            found[run] = found.get(run) or entry.description().name
        return found
