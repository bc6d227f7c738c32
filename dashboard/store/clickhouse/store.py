"""`ClickStore`: the `Store` of any number of `serve` processes, a database on one or more ClickHouse servers.

Each process knows the names, and what it has taken and not yet committed; all else is in the database. What
other processes write is asked for several times a second (`following.py`). Any of them may be lost: what it
had not committed was not acknowledged, and comes again. Each server has a part of the ranks (`shards.py`):
one that does not answer holds up what lies on it, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from probe.wire import StreamKey

from ...errors import DashboardError
from .. import retention
from ..base import StoreBase
from ..catalog import Catalog
from ..changes import SavedRows
from ..edge import Pending
from ..protocol import RunMark, StepNote, StreamPosition
from ..queries import Snapshot
from ..rows import Rows
from ..tensors import Progress
from ..whole_norms import Join
from .connection import FAILURES, Connections, explained, parse_shards, read_password
from .following import Following
from .joint_rows import JointRows
from .norms import NormJoiner
from .replicas import Replicas
from .rows import ClickRows
from .schema import HashedNumbers, create_tables, note_servers, now_ns
from .shards import CANNOT_READ, Places, Shard
from .writer import Writer

RETENTION_EVERY: Final = 50
"""Commits between two looks at what is old; the first commit of a process has one."""
MOST_WAIT_S: Final = 1.0
"""Between two commits."""
QUIET_RANK_S: Final = 3600.0
"""A rank that has said nothing for so long does not hold back what is removed of its run."""
_log = logging.getLogger(__name__)


class ClickStore(Following, StoreBase):
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
            url: ``clickhouse://user@host:9000/database``; ``host:9000,other:9000`` are several servers,
                ``host:9000|other:9000`` replicas of one.
            password: Of the user; None: as the environment says.
            clock: UNIX seconds; decides when a rank is silent.
            raw_steps: Newest steps of a rank that are kept one by one.
            commit_share: Of the time, for commits; the next one waits so long, a second at most. Each makes
                parts, which the server has to merge.

        Raises:
            DashboardError: a server refuses, its tables are of a later release, or none answers. One of
                several may be away, but where ranks may lie elsewhere than their numbers say.
        """
        StoreBase.__init__(self, clock, raw_steps=raw_steps)
        Following.__init__(self)
        password = read_password() if password is None else password
        databases = [
            Connections(replicas[0], password) if len(replicas) == 1 else Replicas(replicas, password)
            for replicas in parse_shards(url)
        ]
        self._commit_share, self._commits_at = commit_share, -math.inf
        self._generation = 0
        self._mine = threading.local()
        self._progress: dict[int, Progress | None] = {}
        """How far timelines are that this process has written to last; replaced, never changed."""
        self._catalog = Catalog(self._load_layout, self._odd, numbers=HashedNumbers())
        shards = [
            Shard(
                number,
                database,
                Writer(database, self._catalog.timelines.run_of, raw_steps=raw_steps, everywhere=databases),
                is_alone=len(databases) == 1 and not database.is_replicated,
            )
            for number, database in enumerate(databases)
        ]
        self._places = Places(shards, self._catalog.timelines.rank_of)
        self._norms = NormJoiner(self._places)
        try:
            self._prepare()
            self._begin_following()
        except DashboardError:
            for database in databases:
                database.close()
            raise

    def _prepare(self) -> None:
        """Have the tables on all servers, or on those that answer, if it is sure what lies on the others."""
        shards, noted = self._places.shards, dict[Shard, int | None]()
        failure: DashboardError | None = None
        for shard in shards:
            try:
                with shard.asked("cannot be used"):
                    shard.database.prepare(shard.number)
                    noted[shard] = create_tables(shard.database, place=shard.number)
                    shard.is_prepared = True
            except DashboardError as error:
                if shard.away is None:
                    raise
                failure = error
        is_even = self._places.is_even = all(number == len(shards) for number in noted.values())
        if failure is not None and not (noted and is_even):
            raise failure
        if not is_even:
            # Another process may be noting it just now.
            is_new = len(shards) == 1 or all(number in (None, len(shards)) for number in noted.values())
            self._places.is_even = is_new
            for shard in shards:
                with shard.asked("cannot be used"):
                    note_servers(shard.database, len(shards) if is_new else 0)

    # -- what `serve` tells of a store

    @property
    def notice(self) -> str | None:
        """What the user must be told about the data; None if nothing."""
        shards = self._places.shards
        said = [text for each in shards for text in (each.away, each.refused, *each.behind) if text]
        said += [self._odd.text()] if self._odd.text() else []
        return " ".join(text if text.endswith(".") else f"{text}." for text in dict.fromkeys(said)) or None

    def note_journals(self, runs: object) -> None:
        """Nothing is found again by reading journals: the database is not this process's own."""

    def generation(self) -> int:
        """How often positions have gone back; see `Store.generation`."""
        return self._generation

    # -- delivery

    def _part_of(self, key: StreamKey) -> int:
        """Each server is a part."""
        return self._places.of_stream(key).number

    def position(self, key: StreamKey) -> StreamPosition:
        """Where this stream continues, after what any process has taken; zeros for one never seen."""
        shard = self._places.of_stream(key)
        with shard.asked():
            self._follow(shard)
        return super().position(key)

    def next_seqs(self, keys: Collection[StreamKey]) -> dict[StreamKey, int]:
        """The `next_seq` of each of these positions, after what any process has taken.

        Each server is asked once; streams on one that does not answer are left out: its commits say so.
        """
        parts: dict[Shard, list[StreamKey]] = {}
        for key in keys:
            parts.setdefault(self._places.of_stream(key), []).append(key)
        found: dict[StreamKey, int] = {}
        failures: list[DashboardError] = []
        for shard, own in parts.items():
            try:
                with shard.asked():
                    self._follow(shard)
                found |= super().next_seqs(own)
            except DashboardError as error:
                failures.append(error)
        if failures and not found:
            raise failures[0]
        return found

    def commit(self) -> dict[StreamKey, int]:
        """Write everything queued; what a server does not take stays queued for it. See `Store.commit`.

        Raises:
            DashboardError: no server takes anything.
        """
        started = time.monotonic()
        if started < self._commits_at:
            return {}
        moved: dict[StreamKey, int] = {}
        failures: list[DashboardError] = []
        for shard in self._places.shards:
            try:
                if shard.away is not None:
                    raise DashboardError(shard.away)
                moved |= self._commit_part(shard.number)
                shard.refused = None
            except DashboardError as error:
                if shard.away is None and (len(self._places.shards) > 1 or shard.database.is_replicated):
                    shard.refused = str(error)
                failures.append(error)
        if len(failures) == len(self._places.shards):
            raise failures[0]
        if not failures:
            with self._commit_lock:
                self._norms.put([])  # with nothing new, too: a server may be back
        took_s = time.monotonic() - started
        self._commits_at = started + min(took_s / self._commit_share, took_s + MOST_WAIT_S)
        return moved

    def _write(self, saved: SavedRows, taken: Sequence[Pending], joins: Sequence[Join]) -> None:
        shard = self._places.shards[saved.part]
        with shard.asked("cannot write, and tries again"):
            overtaken = self._overtaken
            with shard.database.held():
                moved = shard.writer.write(saved, taken, lambda: self._norms.put(joins, shard))
        longer = self._norms.take_touched()
        with self._lock:
            known = {key: at for key, at in self._progress.items() if key not in longer}
            if overtaken == self._overtaken:
                self._progress = {**known, **moved}
            else:
                self._progress = {key: at for key, at in known.items() if key not in moved}
        if shard.commits % RETENTION_EVERY == 0:
            self._remove_old_rows(shard)
        shard.commits += 1

    def _not_committed(self, taken: Sequence[Pending]) -> None:
        """Commits of other servers count on: what failed is not of any."""
        for item in taken:
            item.epoch = None

    def _remove_old_rows(self, shard: Shard) -> None:
        """What was written is durable already: a failure is no reason to write it again."""
        with self._lock:
            names = self._catalog.timelines.names()
            over = self._catalog.ranks_over(self._clock(), quiet_s=QUIET_RANK_S)
        here = self._places.split(list(names)).get(shard, [])
        try:
            shard.writer.retention.apply({timeline: names[timeline] for timeline in here}, over)
            self._refresh_progress(shard)
        except FAILURES as error:
            _log.warning("The store at %s has not removed old rows: %s", shard.database.address, error)
            self._progress = {}

    def _committed(self, saved: SavedRows) -> None:
        """What another process has taken further is no longer hidden by what was queued here."""
        with self._lock:
            for key, account in saved.streams:
                state = self._catalog.streams.get(key)
                if state is not None and state.durable[0] > account[0]:
                    self._show_anew(key.run, {key.stream})

    def close(self) -> None:
        """Commit what is queued and leave the servers. Idempotent."""
        with self._lock:
            if self._closed:
                return
        self._end_following()
        try:
            self._commits_at = -math.inf
            self.commit()
        finally:
            with self._commit_lock, self._lock:
                self._closed = True
            for shard in self._places.shards:
                shard.database.close()

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
            rows = self._rows(progress)
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
        with explained(self._places.shards[0].database.address, CANNOT_READ):
            yield Snapshot(self._rows(), edge, mark, None, self._odd)

    def _rows(self, progress: dict[int, Progress | None] | None = None) -> Rows:
        """Return what is committed; of several servers each read says itself which it is about."""
        if len(self._places.shards) == 1:
            return ClickRows(self._places.shards[0].database, progress)
        return JointRows(self._places, progress)

    def _load_layout(self, timeline: int) -> bytes:
        shard = self._places.of_timeline(timeline)
        query = f"SELECT data FROM layouts WHERE timeline = {timeline} LIMIT 1"
        with shard.asked():
            found = shard.database.rows(query)
        if not found:
            raise ValueError(f"the store has lost the layout of timeline {timeline}")
        return bytes(found[0][0])

    # -- what people say

    def _save_mark(self, run: str, mark: RunMark) -> None:
        shard = self._places.of_run(run)
        with shard.asked("cannot write"):
            row = (run, mark.note, int(mark.starred), now_ns())
            shard.database.run_rows("marks", ("run", "note", "starred", "version"), [row])
            shard.database.secure()

    def _save_note(self, run: str, note: StepNote) -> None:
        self._put_note(run, note, is_gone=False)

    def _delete_note(self, run: str, note_id: str) -> None:
        self._put_note(run, StepNote(id=note_id, step=0, text="", time=0.0), is_gone=True)

    def _put_note(self, run: str, note: StepNote, *, is_gone: bool) -> None:
        shard = self._places.of_run(run)
        with shard.asked("cannot write"):
            names = ("run", "id", "step", "text", "time", "gone", "version")
            row = (run, note.id, note.step, note.text, note.time, int(is_gone), now_ns())
            shard.database.run_rows("notes", names, [row])
            shard.database.secure()
