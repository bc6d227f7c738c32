"""`ClickStore`: the `Store` of any number of `serve` processes, a ClickHouse database.

Each process knows the names, and what it has taken and not yet committed; all else is in the database. What
other processes write is asked for several times a second. Any of them may be lost: what it had not committed
was not acknowledged, and comes again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from probe.wire import StreamKey

from ...errors import DashboardError
from .. import retention
from ..base import StoreBase
from ..catalog import Catalog, SavedRows
from ..edge import Pending
from ..protocol import RunMark, StepNote, StreamPosition
from ..queries import Snapshot
from ..tensors import Progress
from ..whole_norms import Join
from .connection import FAILURES, Connections, explained, parse_address, read_password
from .rows import ClickRows, text
from .schema import OF_RUNS, HashedNumbers, create_tables, now_ns, number_of
from .writer import NO_STEP, Writer

RETENTION_EVERY: Final = 50
"""Commits between two looks at what is old; the first commit of a process has one."""
MOST_WAIT_S: Final = 1.0
"""Between two commits."""
FOLLOW_S: Final = 0.25
IDLE_S: Final = 1.0
LIVELY_S: Final = 30.0
"""How often other processes' positions are asked for: four times a second for so long after one has moved. At
that pace the questions take 3 % of a core here and 6 % in the server."""
_APART_S: Final = 5
"""Rows that the server took so many seconds before the newest known ones are asked for again: they may have
been on their way."""
_FLOORS_EVERY: Final = 10
"""Another process may have removed old rows: how far timelines are is asked for again so often."""
_MOST_KNOWN: Final = 4096
"""Timelines whose progress is asked for in one query; of more, views ask as they come to them."""
_log = logging.getLogger(__name__)


class ClickStore(StoreBase):
    """Durable home of every run in a database that several processes share; see `Store`."""

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        clock: Callable[[], float] = time.time,
        raw_steps: int = retention.RAW_STEPS,
        commit_share: float = 1.0,
    ) -> None:
        """Connect, and make what is missing there.

        Args:
            url: ``clickhouse://user@host:9000/database``.
            password: Of the user; None: as the environment says.
            clock: UNIX seconds; decides when a rank is silent.
            raw_steps: Newest steps of a rank that are kept one by one.
            commit_share: Of the time, for commits; the next one waits so long, a second at most. Each makes
                parts, which the server has to merge.

        Raises:
            DashboardError: the server does not answer or refuses, or its tables are of a later release.
        """
        super().__init__(clock, raw_steps=raw_steps)
        self._address = parse_address(url)
        self._database = Connections(self._address, read_password() if password is None else password)
        self._commit_share, self._commits_at = commit_share, -math.inf
        self._generation = 0
        self._mine = threading.local()
        self._progress: dict[int, Progress | None] = {}
        """How far timelines are that this process has written to last; replaced, never changed."""
        self._others_moved_at = -math.inf
        self._seen_at = self._names_at = 0
        """Newest time, by the server's clock, of what was taken in: positions, and names."""
        self._following = threading.Lock()
        """While the database is asked for names, and these are taken in; after the lock of commits."""
        self._gone: dict[str, int] = {}
        """When runs were deleted, as far as this process has forgotten them."""
        self._commits = 0
        self._noted: dict[str, int] = {}
        """When the newest notes were written that this process has seen."""
        self._overtaken = 0
        """How often another process has gone further than this one."""
        self._catalog = Catalog(self._load_layout, self._odd, numbers=HashedNumbers())
        self._writer = Writer(self._database, self._catalog.run_of, raw_steps=raw_steps)
        try:
            with explained(self._address, "cannot be used"):
                create_tables(self._database)
                self._follow()
        except DashboardError:
            self._database.close()
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow_on, name="nanscope-store", daemon=True)
        self._thread.start()

    # -- what `serve` tells of a store

    @property
    def notice(self) -> str | None:
        """What the user must be told about the data; None if nothing."""
        return self._odd.text() or None

    def note_journals(self, runs: object) -> None:
        """Nothing is found again by reading journals: the database is not this process's own."""

    def generation(self) -> int:
        """How often positions have gone back; see `Store.generation`."""
        return self._generation

    # -- following other processes

    def _follow_on(self) -> None:
        is_lost, tries = False, 0
        while not self._stop.wait(self._follow_wait_s()):
            try:
                self._follow()
                tries += 1
                # Not while a commit waits for a server that hangs: who looks on would wait, too.
                if tries % _FLOORS_EVERY == 0 and self._commit_lock.acquire(blocking=False):
                    try:
                        self._refresh_progress()
                    finally:
                        self._commit_lock.release()
                is_lost = False
            except FAILURES as error:
                if not is_lost and not self._stop.is_set():
                    _log.warning("The store at %s does not answer: %s", self._address, error)
                is_lost = True

    def _follow_wait_s(self) -> float:
        return FOLLOW_S if time.monotonic() - self._others_moved_at < LIVELY_S else IDLE_S

    def _follow(self) -> None:
        """Take in what any process has written since the last time."""
        seen_at, since = self._seen_at, self._seen_at - _APART_S
        for run, version in self._newly_gone(since):
            with self._commit_lock:
                self._drop(run, gone_at=version)
        with self._following:
            self._take_rows(seen_at, since)

    def _newly_gone(self, since: int) -> list[tuple[str, int]]:
        """Runs that another process has deleted."""
        query = f"""SELECT run, max(version) FROM gone_runs WHERE at >= toDateTime({max(since, 0)})
            GROUP BY run"""
        found = [(text(run), version) for run, version in self._database.rows(query)]
        return [(run, version) for run, version in found if version > self._gone.get(run, 0)]

    def _take_rows(self, seen_at: int, since: int) -> None:
        moved, noted = self._moved_streams(since), self._noted_runs(since)
        self._seen_at = max([seen_at, *(row[-1] for row in moved)])
        with self._lock:
            for run, version in noted.items():
                if version > self._noted.get(run, 0):
                    self._noted[run] = version
                    self._drop_notes(run)
                    self._note_change(run)
            durable = {key: state.durable[0] for key, state in self._catalog.streams.items()}
        changed: dict[str, set[str]] = {}
        for run, writer, stream, next_seq, *_ in moved:
            if next_seq > durable.get(StreamKey(run=run, writer=writer, stream=stream), -1):
                changed.setdefault(run, set()).add(stream)
        if not changed:
            return
        self._others_moved_at = time.monotonic()
        # Whatever a position counts has its names there already.
        tables = {name: self._named_rows(name, self._names_at - _APART_S) for name in _NAMES}
        tables["streams"] = [row[:-1] for row in moved]
        self._names_at = self._seen_at
        with self._lock:
            self._catalog.load(lambda table: tables[table])
            foreign = {timeline for run in changed for timeline in self._catalog.timelines_of(run)}
            if foreign:
                self._overtaken += 1
                self._progress = {key: at for key, at in self._progress.items() if key not in foreign}
            for run, streams in changed.items():
                self._show_anew(run, streams)

    def _show_anew(self, run: str, streams: set[str]) -> None:
        """Under the lock: what is in memory of these streams of a run is not all."""
        if streams - {"metrics"}:
            self._shelf.forget(run)
            self._documents_seen[run] += 1
        self._note_change(run)

    def _noted_runs(self, since: int) -> dict[str, int]:
        """Runs of which somebody has written or deleted a note, and when that was."""
        query = f"SELECT run, max(version) FROM notes WHERE at >= toDateTime({max(since, 0)}) GROUP BY run"
        return {text(run): version for run, version in self._database.rows(query)}

    def _moved_streams(self, since: int) -> list[tuple[Any, ...]]:
        query = f"""SELECT run, writer, stream, next_seq, stored, gaps, dropped, at_s FROM
            (SELECT run, writer, stream, next_seq, stored, gaps, dropped, written, toUInt32(at) AS at_s
            FROM streams FINAL WHERE at >= toDateTime({max(since, 0)})) AS found
            ANY LEFT JOIN {_GONE} USING run WHERE written > gone_at"""
        return [(text(row[0]), text(row[1]), text(row[2]), *row[3:]) for row in self._database.rows(query)]

    def _named_rows(self, table: str, since: int) -> list[tuple[Any, ...]]:
        query = f"""SELECT {_NAMES[table]} FROM
            (SELECT * FROM {table} FINAL WHERE at >= toDateTime({max(since, 0)})) AS found
            ANY LEFT JOIN {_GONE} USING run WHERE version > gone_at ORDER BY version"""
        read = _READ[table]
        return [read(row) for row in self._database.rows(query)]

    def _load_layout(self, timeline: int) -> bytes:
        query = f"SELECT data FROM layouts WHERE timeline = {timeline} LIMIT 1"
        with explained(self._address, "cannot be read"):
            found = self._database.rows(query)
        if not found:
            raise ValueError(f"the store has lost the layout of timeline {timeline}")
        return bytes(found[0][0])

    # -- delivery

    def position(self, key: StreamKey) -> StreamPosition:
        """Where this stream continues, after what any process has taken; zeros for one never seen."""
        with explained(self._address, "cannot be read"):
            self._follow()
        return super().position(key)

    def commit(self) -> dict[StreamKey, int]:
        """Write everything queued; see `Store.commit`."""
        started = time.monotonic()
        if started < self._commits_at:
            return {}
        moved = super().commit()
        took_s = time.monotonic() - started
        self._commits_at = started + min(took_s / self._commit_share, took_s + MOST_WAIT_S)
        return moved

    def _write(self, saved: SavedRows, taken: Sequence[Pending], joins: Sequence[Join]) -> None:
        with explained(self._address, "cannot write, and tries again"):
            overtaken = self._overtaken
            moved = self._writer.write(saved, taken, joins)
        with self._lock:
            if overtaken == self._overtaken:
                self._progress = {**self._progress, **moved}
            else:
                self._progress = {key: at for key, at in self._progress.items() if key not in moved}
        if self._commits % RETENTION_EVERY == 0:
            self._remove_old_rows()
        self._commits += 1

    def _remove_old_rows(self) -> None:
        """What was written is durable already: a failure is no reason to write it again."""
        with self._lock:
            names = self._catalog.timeline_names()
        try:
            self._writer.retention.apply(names)
            self._refresh_progress()
        except FAILURES as error:
            _log.warning("The store at %s has not removed old rows: %s", self._address, error)
            self._progress = {}

    def _refresh_progress(self) -> None:
        """Floors have risen, by other processes' doing, too. Under the lock of commits."""
        overtaken, known = self._overtaken, list(self._progress)
        is_asked = 0 < len(known) <= _MOST_KNOWN
        fresh = ClickRows(self._database).progress(known) if is_asked else {}
        with self._lock:
            self._progress = dict(fresh) if overtaken == self._overtaken else {}

    def _committed(self, saved: SavedRows) -> None:
        """What another process has taken further is no longer hidden by what was queued here."""
        with self._lock:
            for key, account in saved.streams:
                state = self._catalog.streams.get(key)
                if state is not None and state.durable[0] > account[0]:
                    self._show_anew(key.run, {key.stream})

    def remove_run(self, run: str) -> None:
        """Delete a run, for all processes; see `Store.remove_run`."""
        with self._commit_lock:
            with self._lock:
                self._require_open()
            gone_at = now_ns()
            with explained(self._address, "cannot delete"):
                self._database.run_rows("gone_runs", ("run", "version"), [(run, gone_at)])
                self._drop(run, gone_at=gone_at)

    def _drop(self, run: str, *, gone_at: int) -> None:
        """Forget a run that was deleted, and drop its rows; may be done again. Under the lock of commits."""
        with self._following, self._lock:
            self._removed |= {(run, key.writer) for key in self._catalog.streams if key.run == run}
            self._gone[run] = gone_at
            # What waits would otherwise be written later, for a run that nobody knows any more.
            self._edge.forget_run(run, set(self._catalog.timelines_of(run)))
            self._catalog.forget_run(run)
            self._shelf.forget(run)
            self._ranks.forget(run)
            self._items.forget(run)
            self._drop_notes(run)
            self._note_change(run)
        self._drop_partitions(number_of("run", run))

    def _drop_partitions(self, number: int) -> None:
        query = """SELECT DISTINCT table, partition FROM system.parts WHERE active
            AND database = %(database)s AND (partition = %(one)s OR partition LIKE %(many)s)"""
        values = {"database": self._address.database, "one": str(number), "many": f"({number},%"}
        for table, partition in self._database.rows(query, values):
            if text(table) in OF_RUNS:
                self._database.run(f"ALTER TABLE {text(table)} DROP PARTITION {text(partition)}")

    def close(self) -> None:
        """Commit what is queued and leave the server. Idempotent."""
        with self._lock:
            if self._closed:
                return
        self._stop.set()
        self._thread.join()
        try:
            self._commits_at = -math.inf
            self.commit()
        finally:
            with self._commit_lock, self._lock:
                self._closed = True
            self._database.close()

    # -- reading

    @contextlib.contextmanager
    def view(self) -> Iterator[None]:
        """Reads of this thread see one state of the store; see `Store.view`."""
        if getattr(self._mine, "snapshot", None) is not None:
            yield
            return
        with self._snapshot() as plain:
            counts = self._counts.read(plain)
            with self._lock:
                edge = self._edge.beyond(self._epoch) or []
                listed, progress = self._list_runs(), dict(self._progress)
            rows = ClickRows(self._database, progress)
            self._mine.snapshot = Snapshot(rows, edge, plain.events_mark, listed, self._odd, counts)
            try:
                yield
            finally:
                self._mine.snapshot = None

    @contextlib.contextmanager
    def _snapshot(self, *, is_writer: bool = False) -> Iterator[Snapshot]:
        if (held := getattr(self._mine, "snapshot", None)) is not None:
            yield held
            return
        with self._lock:
            self._require_open()
            # Taken first: what is committed meanwhile is then in both, and counts once.
            edge, mark = self._edge.beyond(self._epoch) or [], self._shelf.mark_of_all
        with explained(self._address, "cannot be read"):
            yield Snapshot(ClickRows(self._database), edge, mark, None, self._odd)

    # -- what people say

    def _save_mark(self, run: str, mark: RunMark) -> None:
        with explained(self._address, "cannot write"):
            row = (run, mark.note, int(mark.starred), now_ns())
            self._database.run_rows("marks", ("run", "note", "starred", "version"), [row])

    def _save_note(self, run: str, note: StepNote) -> None:
        self._put_note(run, note, is_gone=False)

    def _delete_note(self, run: str, note_id: str) -> None:
        self._put_note(run, StepNote(id=note_id, step=0, text="", time=0.0), is_gone=True)

    def _put_note(self, run: str, note: StepNote, *, is_gone: bool) -> None:
        with explained(self._address, "cannot write"):
            names = ("run", "id", "step", "text", "time", "gone", "version")
            row = (run, note.id, note.step, note.text, note.time, int(is_gone), now_ns())
            self._database.run_rows("notes", names, [row])


_GONE: Final = "(SELECT run, max(version) AS gone_at FROM gone_runs GROUP BY run) AS gone"
_NAMES: Final = {
    "incarnations": "run, rank, incarnation, start, state",
    "layouts": "run, rank, incarnation, number, timeline",
    "timelines": "timeline, run, rank, digest",
    "series": "series, timeline, kind, name",
    "gaps": "run, writer, source, first_seq, end_seq, reason, first_step, last_step",
}


def _step(number: int) -> int | None:
    return None if number == NO_STEP else number


_READ: Final[dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]] = {
    "incarnations": lambda row: (text(row[0]), *row[1:]),
    "layouts": lambda row: (text(row[0]), *row[1:], b""),
    "timelines": lambda row: (row[0], text(row[1]), row[2], row[3]),
    "series": lambda row: (row[0], row[1], text(row[2]), text(row[3])),
    "gaps": lambda row: (
        *(text(part) for part in row[:3]),
        *(row[3], row[4], text(row[5]), _step(row[6]), _step(row[7])),
    ),
}
"""A row as the catalogue takes it."""
