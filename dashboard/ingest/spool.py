"""Reads journals straight into the store that nobody ships to it: of runs that have ended, that never had a
helper, or whose helper ships to another dashboard.

Called by `serve` at its start and every few seconds, on a thread of its own, and by `dashboard open`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from probe.delivery.helper.detail import detail_of
from probe.delivery.helper.helper import lock_owner, lock_path
from probe.delivery.journal.journal_reader import Chunk, Skipped, StreamFollower
from probe.delivery.journal.rank_journals import generations
from probe.delivery.journal.run_folders import list_runs, list_writers, run_problem, unreadable_runs
from probe.wire import BATCH_BYTES, SentStream, StreamKey, StreamName

from ..errors import DashboardError
from ..store.protocol import Store
from .ended_runs import EndedRuns

_log = logging.getLogger(__name__)

COMMIT_BYTES: Final = 8 * 1024**2
_STREAMS: Final[tuple[StreamName, ...]] = ("events", "host", "metrics")
PIECE_BYTES: Final = 64 * 1024
"""Read of a rank's metrics before the next one has its turn: ranks are compared as they arrive."""


class _ReplacedError(Exception):
    """The store has lost what it had: all is given again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one pass over a spool did."""

    runs: int
    """Runs that were looked at."""
    shipped_by_helpers: int
    """Runs left alone because a helper ships them to this store."""
    records: int
    """Records given to the store in this pass."""
    missing: int
    """Records that the journals no longer hold, that are damaged, or that a writer's account has and its
    segments have not; the store counts them as gaps."""
    seen: tuple[str, ...]
    """Ids of the runs that have journals, in this pass."""
    problems: tuple[str, ...]
    """One sentence per hole, damaged place or odd file met in any pass so far; the first 100."""
    odd_files: tuple[str, ...] = ()
    """Those of the sentences that are of files that were passed over: no record is missing by them alone."""


class _RestOfDetail(StreamFollower):
    """The statistics of frames that a helper has sent without them, and that it cannot send any more."""

    def __init__(self, folder: Path, *, from_seq: int, end_seq: int) -> None:
        super().__init__(folder, "metrics", from_seq=from_seq, to_end=True)
        self._end_seq = end_seq

    def poll(self, max_bytes: int = BATCH_BYTES) -> Chunk | Skipped | None:
        """See `StreamFollower.poll`."""
        found = super().poll(max_bytes) if self.next_seq < self._end_seq else None
        if not isinstance(found, Chunk):
            return found
        records = found.records[: self._end_seq - found.first_seq]
        self.next_seq = found.first_seq + len(records)
        return Chunk(found.first_seq, [detail_of(data) for data in records])


class SpoolIngest:
    """Brings a store up to date with a spool, as often as it is asked; remembers how far it read.

    Args:
        store: where the records go; repeated ones are ignored there.
        spool: root folder of all runs.
        only: ids of the runs that are read; None reads all.
        on_bytes: called with the size of what was read, piece by piece.
        is_shipped: tells of a run that has a helper whether that ships to this store.
    """

    def __init__(
        self,
        store: Store,
        spool: Path,
        *,
        only: Collection[str] | None = None,
        on_bytes: Callable[[int], None] | None = None,
        is_shipped: Callable[[str], bool] = lambda run: True,
    ) -> None:
        self._is_shipped = is_shipped
        self._on_bytes = on_bytes
        self._store = store
        self._spool = spool
        self._only = only
        self._followers: dict[str, dict[StreamKey, StreamFollower]] = {}
        """By run."""
        self._ended = EndedRuns()
        self._unfinished: set[str] = set()
        """Runs of which something was found when they were read last, or could not be read."""
        self._queued_bytes = 0
        self._records = 0
        self._missing = 0
        self._problems: list[str] = []
        self._odd_files: list[str] = []
        self._described: set[str] = set()
        """Runs whose description has been looked at."""
        self._generation = store.generation()

    def run(self, *, progress: Callable[[str], None] | None = None) -> IngestReport:
        """Read everything new of every run that no helper ships here; commit it.

        Args:
            progress: called with a run's id before it is read.

        Raises:
            JournalError: the spool is no spool.
            DashboardError: the store does not take data; a later pass begins where this one ended.
        """
        self._records, self._missing = 0, 0
        shipped = 0
        ended = self._ended.look(self._spool)
        self._tell_unreadable(ended)
        folders = [
            folder
            for folder in list_runs(self._spool, ended)
            if self._only is None or folder.name in self._only
        ]
        for folder in folders:
            if _has_helper(folder) and self._is_shipped(folder.name):
                shipped += 1
                continue
            if progress is not None:
                progress(folder.name)
            self._read_run_or_tell(folder)
        self._commit()
        if self._is_replaced():
            return self.run(progress=progress)
        return self._report([*ended, *(folder.name for folder in folders)], shipped_by_helpers=shipped)

    def run_one(self, folder: Path) -> IngestReport:
        """Read everything new of one run, even if a helper ships it to another store; commit it.

        Raises:
            DashboardError: the store does not take data.
        """
        self._records, self._missing = 0, 0
        self._read_run(folder)
        self._commit()
        if self._is_replaced():
            return self.run_one(folder)
        return self._report([folder.name], shipped_by_helpers=0)

    def _report(self, runs: Sequence[str], *, shipped_by_helpers: int) -> IngestReport:
        return IngestReport(
            runs=len(runs),
            seen=tuple(runs),
            shipped_by_helpers=shipped_by_helpers,
            records=self._records,
            missing=self._missing,
            problems=tuple(self._problems[:100]),
            odd_files=tuple(self._odd_files[:100]),
        )

    def _read_run_or_tell(self, folder: Path) -> None:
        """Read a run; whatever is wrong with it is told, and the other runs are read all the same.

        Raises:
            DashboardError: the store does not take data.
        """
        run = folder.name
        self._unfinished.discard(run)
        try:
            is_over = self._ended.is_over(folder)
            self._read_run(folder)
        except DashboardError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault in reading one run must not hide the others
            problem = f"Run {folder.name} cannot be read: {type(error).__name__}: {str(error)[:200]}"
            if problem not in self._odd_files:
                _log.exception("%s", problem)
            self._tell(problem)
            self._followers.pop(run, None)  # the next pass begins where the store is
            return
        if is_over and run not in self._unfinished:
            self._ended.add(run)
            self._followers.pop(run, None)

    def _read_run(self, folder: Path) -> None:
        """Read everything new of a run; from its beginning where the store has lost it meanwhile."""
        while True:
            self._is_replaced()
            with contextlib.suppress(_ReplacedError):
                self._read_writers(folder)
                return

    def _is_replaced(self) -> bool:
        """Whether the store has lost what it had since the last look; then everything is read again."""
        generation = self._store.generation()
        if generation == self._generation:
            return False
        self._followers.clear()
        self._ended.forget()
        self._generation = generation
        return True

    def _read_writers(self, folder: Path) -> None:
        if folder.name not in self._described:
            self._described.add(folder.name)
            if problem := run_problem(folder):
                self._tell(f"Run {folder.name}: {problem}")
        writers = list_writers(folder)
        of_ranks = generations(writers)
        for together in of_ranks:
            for writer in together:
                self._read(folder.name, writer, "events")
                self._read(folder.name, writer, "detail")
            reading = {writer: self._pieces(folder.name, writer, "metrics") for writer in together}
            while reading:
                ended = [writer for writer, pieces in reading.items() if next(pieces, None) is None]
                for writer in ended:
                    del reading[writer]
        for writer in set(writers).difference(*of_ranks):
            for stream in _STREAMS:
                self._read(folder.name, writer, stream)

    def _read(self, run: str, folder: Path, stream: SentStream) -> None:
        for _ in self._pieces(run, folder, stream):
            pass

    def _pieces(self, run: str, folder: Path, stream: SentStream) -> Iterator[int]:
        """Read a stream to its end; yields after each piece."""
        key = StreamKey(run=run, writer=folder.name, stream=stream)
        followers = self._followers.setdefault(run, {})
        follower = followers.get(key)
        if follower is None or (stream == "detail" and self._is_overtaken(key)):
            follower = followers[key] = self._begin(key, folder)
        stalled = False
        while (found := self._poll(key, follower)) is not None:
            self._unfinished.add(run)
            if isinstance(found, Skipped) and found.first_seq == found.end_seq:
                self._tell(f"Run {run}, {found.reason}")
                continue
            if stream == "metrics":
                # Frames mean nothing before their layout, which was written before them.
                self._read(run, folder, "events")
            if self._on_bytes is not None and isinstance(found, Chunk):
                self._on_bytes(sum(map(len, found.records)))
            expected = self._give(key, found)
            if expected != follower.next_seq:
                follower.seek(expected)  # a helper has shipped some of it, or the store's queue is full
            if self._queued_bytes >= COMMIT_BYTES or expected <= found.first_seq:
                self._commit()
            if stalled and expected <= found.first_seq:
                return
            stalled = expected <= found.first_seq
            yield follower.next_seq

    def _begin(self, key: StreamKey, folder: Path) -> StreamFollower:
        """Follow a stream from where the store is; detail up to where a helper has sent the metrics."""
        start = self._store.position(key).next_seq
        if key.stream != "detail":
            return StreamFollower(folder, key.stream, from_seq=start, to_end=True)
        metrics = StreamKey(run=key.run, writer=key.writer, stream="metrics")
        # A helper that sends statistics apart sends those of the first record at once.
        end = self._store.position(metrics).next_seq if start else 0
        return _RestOfDetail(folder, from_seq=start, end_seq=end)

    def _is_overtaken(self, detail: StreamKey) -> bool:
        """Whether a helper has sent metrics since they were read here: its detail ends elsewhere now."""
        metrics = StreamKey(run=detail.run, writer=detail.writer, stream="metrics")
        follower = self._followers[detail.run].get(metrics)
        return follower is not None and self._store.position(metrics).next_seq > follower.next_seq

    def _poll(self, key: StreamKey, follower: StreamFollower) -> Chunk | Skipped | None:
        """Read the next piece; None too where a file cannot be read, which is told and stays one stream's."""
        try:
            return follower.poll(PIECE_BYTES if key.stream == "metrics" else BATCH_BYTES)
        except OSError as error:
            self._unfinished.add(key.run)
            self._tell(
                f"Run {key.run}: {key.stream} of {key.writer} cannot be read: {error.strerror or error}"
            )
            return None

    def _tell_unreadable(self, ended: Collection[str]) -> None:
        for name, reason in unreadable_runs(self._spool, ended).items():
            if self._only is None or name in self._only:
                self._tell(f"{name} in the spool is passed over: {reason}")

    def _tell(self, problem: str) -> None:
        """Keep a sentence of a file that is passed over, once."""
        if problem not in self._odd_files:
            self._odd_files.append(problem)
            self._problems.append(problem)

    def _give(self, key: StreamKey, found: Chunk | Skipped) -> int:
        """Hand one piece to the store; return the number that it expects next."""
        if isinstance(found, Chunk):
            expected = self._store.append(key, found.first_seq, found.records, generation=self._generation)
            if self._store.generation() != self._generation:
                raise _ReplacedError
            if expected > found.first_seq:
                self._records += min(expected - found.first_seq, len(found.records))
                self._queued_bytes += sum(map(len, found.records))
            return expected
        expected = self._store.skip(key, found.first_seq, found.end_seq, found.reason)
        if expected > found.first_seq:
            missing = min(expected, found.end_seq) - found.first_seq
            self._missing += missing
            self._problems.append(f"Run {key.run}, records missing: {missing:,}, {found.reason}")
        return expected

    def _commit(self) -> None:
        self._store.commit()
        self._queued_bytes = 0


def ingest_spool(store: Store, spool: Path, *, progress: Callable[[str], None] | None = None) -> IngestReport:
    """Read a spool into the store once; see `SpoolIngest.run`, which repeats at less cost."""
    return SpoolIngest(store, spool).run(progress=progress)


def _has_helper(run_folder: Path) -> bool:
    return any(lock_owner(lock_path(folder)) is not None for folder in run_folder.glob("host-*"))
