"""The part of `ClickStore` that takes in what other processes have written, and deletes runs everywhere.

A thread for each server asks it for positions first, and for names where one has moved. A run is deleted by a
row on each server. One that was away lacks it, or where the process was killed: who sees that writes it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clickhouse_driver.errors import ServerException

from probe.wire import StreamKey

from ...errors import DashboardError
from ..catalog import Catalog
from ..edge import Edge
from ..event_shelf import EventShelf
from ..limits import ItemLimits
from ..protocol import Looks
from ..rank_events import RankEvents
from ..tensors import Progress
from .connection import Connections
from .leftovers import Leftovers, remove_deleted
from .looks import SharedLooks
from .norms import NormJoiner
from .rows import ClickRows
from .said_rows import text
from .schema import create_tables, now_ns
from .shards import Places, Shard
from .writer import NO_STEP

FOLLOW_S: Final = 0.25
IDLE_S: Final = 1.0
LIVELY_S: Final = 30.0
"""How often other processes' positions are asked for: four times a second for so long after one has moved. At
that pace the questions take 3 % of a core here and 6 % in the server."""
KEEP_S: Final = 2.0
"""How often replicas are looked at."""
_APART_S: Final = 5
"""Rows that the server took so many seconds before the newest known ones are asked for again: they may have
been on their way."""
_FLOORS_EVERY: Final = 10
"""Another process may have removed old rows: how far timelines are is asked for again so often."""
_MOST_KNOWN: Final = 4096
"""Timelines whose progress is asked for in one query; of more, views ask as they come to them."""
_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Following:
    """Takes in what others write; the fields are those of `ClickStore`."""

    _catalog: Catalog
    _lock: threading.Lock
    _commit_lock: threading.RLock
    _shelf: EventShelf
    _ranks: RankEvents
    _items: ItemLimits
    _edge: Edge
    _removed: set[tuple[str, str]]
    _documents_seen: Counter[str]
    _places: Places
    _norms: NormJoiner
    _progress: dict[int, Progress | None]

    if TYPE_CHECKING:

        def _note_change(self, run: str) -> None: ...

        def _drop_notes(self, run: str) -> None: ...

        def _require_open(self) -> None: ...

    def __init__(self) -> None:
        self._others_moved_at = -math.inf
        self._gone: dict[str, int] = {}
        """When runs were deleted, as far as this process has forgotten them."""
        self._noted: dict[str, int] = {}
        """When the newest notes were written that this process has seen."""
        self._overtaken = 0
        """How often another process has gone further than this one."""
        self._shared_looks: SharedLooks | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def share_looks(self, looks: Looks) -> None:
        """Have the other processes know which ranks pages show here, and the other way round."""
        self._shared_looks = SharedLooks(looks, self._places)

    def _begin_following(self) -> None:
        """Take in all that is there, and go on with it.

        Raises:
            DashboardError: a server refuses, or none answers any more. One of several that has gone since
                its tables were looked at is away, as one that was before.
        """
        gone: dict[Shard, dict[str, int]] = {}
        for shard in self._places.shards:
            found = self._ask_first(shard, partial(self._newly_gone, shard, 0))
            gone |= {} if found is None else {shard: dict(found)}
        newest: dict[str, int] = {}
        for run, version in (pair for found in gone.values() for pair in found.items()):
            newest[run] = max(version, newest.get(run, 0))
        with self._commit_lock:
            for run, version in newest.items():
                lacking = [shard for shard, found in gone.items() if found.get(run, 0) < version]
                self._bury(run, gone_at=version, lacking=lacking)
            self._remove_rows(newest)
        for shard in self._places.shards:
            self._ask_first(shard, partial(self._follow, shard))
        for shard in self._places.shards:
            name = f"nanscope-store-{shard.number}"
            self._threads.append(
                threading.Thread(target=self._follow_on, args=(shard,), name=name, daemon=True)
            )
            if shard.database.is_replicated:
                self._threads.append(
                    threading.Thread(
                        target=self._keep_on, args=(shard,), name=f"{name}-replicas", daemon=True
                    )
                )
        for thread in self._threads:
            thread.start()

    def _ask_first(self, shard: Shard, ask: Callable[[], _Answer]) -> _Answer | None:
        """Ask a server that has its tables; None of one that has gone since, and begins late."""
        if not shard.is_prepared:
            return None
        try:
            with shard.asked("cannot be used"):
                return ask()
        except DashboardError:
            shard.is_prepared = False
            if shard.away is None or not any(one.is_prepared for one in self._places.shards):
                raise
            return None

    def _end_following(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _follow_on(self, shard: Shard) -> None:
        leftovers = Leftovers(shard.database)
        is_lost, tries = False, 0
        while not self._stop.wait(self._follow_wait_s()):
            try:
                with shard.asked(is_tried=True):
                    if shard.is_prepared and shard.away is not None:
                        self._choose_replica(shard, shard.database.choose)
                    if not shard.is_prepared:
                        self._begin_late(shard)
                    self._follow(shard)
                    tries += 1
                    # Not while a commit waits for a server that hangs: who looks on would wait, too.
                    if tries % _FLOORS_EVERY == 0 and self._commit_lock.acquire(blocking=False):
                        try:
                            self._refresh_progress(shard)
                        finally:
                            self._commit_lock.release()
                is_lost = False
                if shard.away is not None:
                    self._take_back(shard)
                if self._shared_looks is not None:
                    with shard.asked():
                        self._shared_looks.exchange(shard)
                with shard.asked():
                    leftovers.remove()
            except DashboardError as error:
                if not is_lost and not self._stop.is_set():
                    _log.warning("%s", str(error)[0].upper() + str(error)[1:])
                is_lost = True

    def _follow_wait_s(self) -> float:
        return FOLLOW_S if time.monotonic() - self._others_moved_at < LIVELY_S else IDLE_S

    def _begin_late(self, shard: Shard) -> None:
        """A server was away when this process began."""
        shard.database.prepare(shard.number)
        create_tables(shard.database, place=shard.number)
        found = dict(self._newly_gone(shard, 0))
        shard.owed |= {run: at for run, at in self._gone.items() if found.get(run, 0) < at}
        shard.is_prepared = True

    def _choose_replica(self, shard: Shard, choose: Callable[[], bool]) -> None:
        if choose():
            # Times are by another clock, and rows may have come late.
            with shard.following:
                shard.seen_at = shard.names_at = 0

    def _keep_on(self, shard: Shard) -> None:
        """Have replicas join that have caught up, and the first one that may lead do so."""
        while not self._stop.wait(KEEP_S):
            if shard.is_prepared and shard.away is None:
                shard.behind = shard.database.keep()
                with self._commit_lock:  # not while a commit is on its way
                    self._choose_replica(shard, shard.database.turn)

    def _take_back(self, shard: Shard) -> None:
        """A server answers again: what was read without it, and kept, is to be read anew."""
        shard.away = None
        with self._lock:
            for run in {key.run for key in self._catalog.streams}:
                self._shelf.forget(run)
                self._drop_notes(run)
                self._note_change(run)

    def _follow(self, shard: Shard) -> None:
        """Take in what any process has written to a server since the last time."""
        if owed := dict(shard.owed):
            with contextlib.suppress(ServerException):  # it is tried again, and nothing waits for it
                shard.database.run_rows("gone_runs", ("run", "version"), list(owed.items()))
                shard.database.secure()
                remove_deleted(shard.database, owed)
                for run, version in owed.items():
                    if shard.owed.get(run) == version:
                        shard.owed.pop(run, None)
        seen_at, since = shard.seen_at, shard.seen_at - _APART_S
        for run, version in self._newly_gone(shard, since):
            if version > self._gone.get(run, 0):
                others = [other for other in self._places.shards if other is not shard]
                with self._commit_lock:
                    self._bury(run, gone_at=version, lacking=others)
                    self._remove_rows({run: version})
        with shard.following:
            self._take_rows(shard, seen_at, since)

    def _newly_gone(self, shard: Shard, since: int) -> list[tuple[str, int]]:
        """Runs that were deleted, by any process, and when."""
        query = f"""SELECT run, max(version) FROM gone_runs WHERE at >= toDateTime({max(since, 0)})
            GROUP BY run"""
        return [(text(run), version) for run, version in shard.database.rows(query)]

    def _take_rows(self, shard: Shard, seen_at: int, since: int) -> None:
        moved, noted = _moved_streams(shard.database, since), _noted_runs(shard.database, since)
        shard.seen_at = max([seen_at, *(row[-1] for row in moved)])
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
        # What is taken in is acknowledged to whoever asks.
        shard.database.secure(("streams",))
        self._others_moved_at = time.monotonic()
        # Whatever a position counts has its names on the same server already.
        tables = {name: _named_rows(shard.database, name, shard.names_at - _APART_S) for name in _NAMES}
        tables["streams"] = [row[:-1] for row in moved]
        shard.names_at = shard.seen_at
        with self._lock:
            self._catalog.load(lambda table: tables[table])
            for _, run, rank, _ in tables["timelines"]:
                self._places.learn(run, rank, shard)
            foreign = {timeline for run in changed for timeline in self._catalog.timelines.of_run(run)}
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

    def _refresh_progress(self, shard: Shard) -> None:
        """Floors have risen, by other processes' doing, too. Under the lock of commits."""
        overtaken, known = self._overtaken, self._places.split(list(self._progress)).get(shard, [])
        is_asked = 0 < len(known) <= _MOST_KNOWN
        fresh = ClickRows(shard.database).progress(known) if is_asked else {}
        with self._lock:
            others = {key: at for key, at in self._progress.items() if key not in set(known)}
            self._progress = {**others, **fresh} if overtaken == self._overtaken else {}

    # -- deleting

    def remove_run(self, run: str) -> None:
        """Delete a run, for all processes; see `Store.remove_run`."""
        with self._commit_lock:
            with self._lock:
                self._require_open()
            for shard in self._places.shards:
                with shard.asked("cannot delete"):
                    shard.database.rows("SELECT 1")
            gone_at = now_ns()
            self._bury(run, gone_at=gone_at, lacking=self._places.shards)
            self._remove_rows({run: gone_at}, is_new=True)
            if any(run in shard.owed for shard in self._places.shards):
                raise DashboardError("the run is deleted on some servers, on the others when they answer")

    def _bury(self, run: str, *, gone_at: int, lacking: Collection[Shard]) -> None:
        """Have all servers know that a run was deleted, and forget it. Under the lock of commits.

        Args:
            run: Its id.
            gone_at: When it was deleted.
            lacking: Servers that do not know it yet.
        """
        for shard in lacking:
            try:
                with shard.asked("cannot delete"):
                    shard.database.run_rows("gone_runs", ("run", "version"), [(run, gone_at)])
                    shard.database.secure()
            except DashboardError:
                if shard.away is None:
                    raise  # it refuses
                shard.owed[run] = gone_at
        for shard in self._places.shards:
            # Whoever takes in names just now has asked before.
            with shard.following:
                pass
        self._forget(run, gone_at)

    def _remove_rows(self, gone: dict[str, int], *, is_new: bool = False) -> None:
        """Remove the rows of runs that were deleted; may be done again. Under the lock of commits."""
        for shard in self._places.shards:
            try:
                with shard.asked("cannot delete"):
                    remove_deleted(shard.database, gone, is_new=is_new)
            except DashboardError:
                shard.owed |= gone
                if shard.away is None:
                    raise

    def _forget(self, run: str, gone_at: int) -> None:
        with self._lock:
            self._removed |= {(run, key.writer) for key in self._catalog.streams if key.run == run}
            self._gone[run] = gone_at
            # What waits would otherwise be written later, for a run that nobody knows any more.
            self._edge.forget_run(run, set(self._catalog.timelines.of_run(run)))
            self._catalog.forget_run(run)
            self._places.forget(run)
            self._norms.forget(run)
            self._shelf.forget(run)
            self._ranks.forget(run)
            self._items.forget(run)
            self._drop_notes(run)
            self._note_change(run)


def _noted_runs(database: Connections, since: int) -> dict[str, int]:
    """Return runs of which somebody has written or deleted a note, and when that was."""
    query = f"SELECT run, max(version) FROM notes WHERE at >= toDateTime({max(since, 0)}) GROUP BY run"
    return {text(run): version for run, version in database.rows(query)}


def _moved_streams(database: Connections, since: int) -> list[tuple[Any, ...]]:
    query = f"""SELECT run, writer, stream, next_seq, stored, gaps, dropped, at_s FROM
        (SELECT run, writer, stream, next_seq, stored, gaps, dropped, written, toUInt32(at) AS at_s
        FROM streams FINAL WHERE at >= toDateTime({max(since, 0)})) AS found
        ANY LEFT JOIN {_GONE} USING run WHERE written > gone_at"""
    return [(text(row[0]), text(row[1]), text(row[2]), *row[3:]) for row in database.rows(query)]


def _named_rows(database: Connections, table: str, since: int) -> list[tuple[Any, ...]]:
    query = f"""SELECT {_NAMES[table]} FROM
        (SELECT * FROM {table} FINAL WHERE at >= toDateTime({max(since, 0)})) AS found
        ANY LEFT JOIN {_GONE} USING run WHERE version > gone_at ORDER BY version"""
    read = _READ[table]
    return [read(row) for row in database.rows(query)]


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
