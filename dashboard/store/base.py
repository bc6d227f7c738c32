"""What every store does alike: takes records, counts them, shows them at once, and reads.

Names, positions and what is not yet committed are in memory, under one lock; committed rows come from the
engine (`Rows`). `DuckStore` and `ClickStore` say how a commit is written and how a read begins.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import pandas as pd

from probe.wire import Event, Layout, RunStart, StreamKey, encode

from ..errors import DashboardError
from . import retention, runs
from .catalog import Catalog, position_of
from .changes import Changes, SavedRows
from .documents import document_sizes
from .edge import MAX_SEQ, Edge, Pending
from .event_shelf import EventShelf
from .heatmaps import plan_heatmap, read_heatmap, statistic_names
from .histograms import histogram_mark, histogram_subjects, plan_histograms, read_histograms
from .ingest import Intake, decode
from .kept import KeptThings
from .limits import ItemLimits
from .odd_rows import OddRows
from .protocol import (
    GapRange,
    Heatmap,
    MagnitudeHistogram,
    RunSummary,
    StepRange,
    StreamPosition,
)
from .queries import Snapshot, read_scalars
from .rank_events import RankEvents
from .rank_scalars import RankReads
from .runs import EventCounts
from .tensor_reads import TensorReads
from .timelines import SCALAR
from .whole_norms import WHOLE, Join, plan_joins, whole_series

ALL_STEPS: Final = StepRange()
MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024
"""While commits fail, appends beyond this are not taken; the journal keeps them for later."""


class StoreBase(KeptThings, RankReads, TensorReads):
    """The part of a store that no engine has to do with; see `Store` for what the methods mean.

    A step belongs to the newest incarnation that has it; of what that has of a repeated step, reads show the
    last to arrive. Ranges are widened to whole columns.
    """

    _catalog: Catalog
    _generation: int

    if TYPE_CHECKING:

        def _snapshot(self, *, is_writer: bool = False) -> AbstractContextManager[Snapshot]:
            """Give a read one consistent state; who takes records waits for no other read."""
            ...

        def _write(self, saved: SavedRows, taken: Sequence[Pending], joins: Sequence[Join]) -> None:
            """Make a commit durable.

            Raises:
                DashboardError: the engine refuses; what was written of it may be written again.
            """
            ...

    def __init__(self, clock: Callable[[], float], *, raw_steps: int = retention.RAW_STEPS) -> None:
        KeptThings.__init__(self)
        self._clock = clock
        self._raw_steps = raw_steps
        self._lock = threading.Lock()
        self._commit_lock = threading.RLock()
        self._removed: set[tuple[str, str]] = set()
        """(run, writer) whose late records are taken and thrown away."""
        self._closed = False
        self._revisions: Counter[str | None] = Counter()
        self._shelf = EventShelf()
        self._odd = OddRows()
        self._begin()

    def _begin(self) -> None:
        """Nothing is queued, and nothing is known of what is running."""
        self._edge = Edge()
        self._ranks = RankEvents()
        self._items = ItemLimits()
        self._counts = EventCounts()
        self._queued_bytes: Counter[int] = Counter()
        """By part."""
        self._epoch = 0
        self._notes.clear()

    def _mend(self) -> None:
        """Before anything is done, without a lock: see to a database that is damaged."""

    def _committed(self, saved: SavedRows) -> None:
        """A commit is durable."""

    def _not_committed(self, taken: Sequence[Pending]) -> None:
        """A commit has failed, and is tried again. Under the lock."""

    def _part_of(self, key: StreamKey) -> int:
        """Return the number of the part of the store that a stream is made durable with."""
        return 0

    # -- delivery

    def position(self, key: StreamKey) -> StreamPosition:
        """Where this stream continues (durable); zeros for one never seen."""
        with self._lock:
            stream = self._catalog.streams.get(key)
            return position_of(key, stream.durable if stream else (0, 0, 0, 0))

    def next_seqs(self, keys: Collection[StreamKey]) -> dict[StreamKey, int]:
        """The `next_seq` of each of these positions; see `Store.next_seqs`."""
        with self._lock:
            streams = self._catalog.streams
            return {key: streams[key].durable[0] if key in streams else 0 for key in keys}

    def refuses(self, key: StreamKey) -> str | None:
        """Why a stream is not taken; see `Store.refuses`."""
        with self._lock:
            return self._catalog.refuses(key)

    def limit_notices(self) -> list[str]:
        """What runs had too much of, for the page; empty while nothing was left out."""
        with self._lock:
            return self._catalog.limits.notices()

    def positions(self, run: str) -> list[StreamPosition]:
        """The delivery account of every stream of a run."""
        with self._lock:
            known = [(key, state.durable) for key, state in self._catalog.streams.items() if key.run == run]
        return [position_of(key, account) for key, account in sorted(known, key=lambda pair: str(pair[0]))]

    def append(
        self, key: StreamKey, first_seq: int, records: list[bytes], *, generation: int | None = None
    ) -> int:
        """Queue encoded records; see `Store.append`."""
        self._mend()
        with self._lock:
            expected = self._next_seq(key)
            if (key.run, key.writer) in self._removed:
                return max(expected, first_seq + len(records))
            size = sum(map(len, records))
            if generation not in (None, self._generation):
                return expected
            part = self._part_of(key)
            if first_seq > expected or self._queued_bytes[part] + size > MAX_QUEUED_BYTES:
                return expected
            if first_seq + len(records) > MAX_SEQ or self._catalog.refuses(key):
                return expected
            is_followed = self._ranks.knows(key.run) and self._items.knows(key.run)
        decoded = decode(records[max(0, expected - first_seq) :])
        known = [] if is_followed else self._events(key.run, is_writer=True)
        documents = [] if is_followed else self._document_sizes(key.run)
        with self._lock:
            self._ranks.begin(key.run, known)
            if not self._items.knows(key.run):
                self._items.begin(key.run, ((e.id, len(encode(e))) for e in known), documents)
            self._require_open()
            if generation not in (None, self._generation):
                return self._next_seq(key)
            if not decoded or self._next_seq(key) != expected or (key.run, key.writer) in self._removed:
                return self._next_seq(key)
            part = self._catalog.changes.part = self._part_of(key)
            intake = Intake(self._catalog, key, now=self._clock(), ranks=self._ranks, items=self._items)
            pending, refused = intake.take(expected, decoded)
            stream = self._catalog.stream(key)
            stream.next_seq += len(decoded)
            stream.dropped += refused
            stream.stored += len(decoded) - refused
            self._queued_bytes[part] += size
            pending.part = part
            self._edge.add(pending)
            self._shelf.add(event for event, _ in pending.events)
            self._documents_seen[key.run] += len(pending.documents)
            for run in {key.run, *intake.members}:
                self._note_change(run)
            return stream.next_seq

    def skip(self, key: StreamKey, first_seq: int, end_seq: int, reason: str) -> int:
        """Count `[first_seq, end_seq)` as a gap under the same rules as `append`."""
        with self._lock:
            self._require_open()
            expected = self._next_seq(key)
            if (key.run, key.writer) in self._removed:
                return end_seq
            if first_seq > expected or end_seq <= expected or end_seq > MAX_SEQ:
                return expected
            if self._catalog.refuses(key):
                return expected
            self._catalog.changes.part = self._part_of(key)
            stream = self._catalog.stream(key)
            stream.gaps += end_seq - expected
            stream.next_seq = end_seq
            runs.note_skip(self._catalog, key, first_seq=expected, end_seq=end_seq, reason=reason)
            self._note_change(key.run)
            return end_seq

    def _next_seq(self, key: StreamKey) -> int:
        stream = self._catalog.streams.get(key)
        return stream.next_seq if stream else 0

    def commit(self) -> dict[StreamKey, int]:
        """Write everything queued; return the durable next sequence numbers that moved.

        Raises:
            DashboardError: the engine refuses (a full disk, say); everything stays queued for the next try.
        """
        self._mend()
        return self._commit_part(0)

    def _commit_part(self, part: int) -> dict[StreamKey, int]:
        with self._commit_lock:
            with self._lock:
                self._require_open()
                self._catalog.changes.part = part
                taken = self._edge.take(self._epoch + 1, part)
                joins = plan_joins(self._catalog, taken)
                changes, self._catalog.changes.now = self._catalog.changes.now, Changes()
                if not changes.streams:
                    self._catalog.changes.now = changes
                    return {}
                saved = self._catalog.snapshot(changes)
                queued = self._queued_bytes.pop(part, 0)
            durable = False
            try:
                self._write(saved, taken, joins)
                durable = True
            finally:
                if not durable:
                    with self._lock:
                        self._catalog.changes.part = part
                        self._catalog.changes.now = changes.followed_by(self._catalog.changes.now)
                        self._queued_bytes[part] += queued
                        self._not_committed(taken)
            with self._lock:
                self._epoch += 1
                self._edge.forget(self._epoch)
                for run in {join.run for join in joins}:
                    self._note_change(run)
                moved = self._catalog.settle(saved)
            self._committed(saved)
            return moved

    # -- reading

    def revision(self, run: str | None = None) -> int:
        """A number that changes with whatever reads of a run, or of any, show; see `Store.revision`."""
        return self._revisions[run]

    def _note_change(self, run: str) -> None:
        """Count a change of a run; under the lock, after it can be read."""
        self._revisions[run] += 1
        self._revisions[None] += 1

    def _require_open(self) -> None:
        if self._closed:
            raise DashboardError("the store is closed")

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        with self._snapshot() as snapshot:
            counts, listed = snapshot.event_counts, snapshot.runs
            counts = self._counts.read(snapshot) if counts is None else counts
        with self._lock:
            return runs.with_counts(listed if listed is not None else self._list_runs(), counts)

    def _list_runs(self) -> list[RunSummary]:
        return runs.summarise(self._catalog, self._clock())

    def run_start(self, run: str, rank: int = 0) -> RunStart | None:
        """The newest incarnation's description; None for an unknown run or rank."""
        with self._lock:
            newest = self._catalog.newest(run, rank)
            return newest.description() if newest else None

    def layout(self, run: str, rank: int = 0) -> Layout | None:
        """The newest layout of the newest incarnation that has one."""
        self._mend()
        with self._lock:
            found = self._catalog.newest_layout(run, rank)
            return found[1] if found else None

    def scalar_names(self, run: str, rank: int = 0) -> list[str]:
        """Names of all scalar series of the rank, sorted."""
        with self._lock:
            timeline = self._catalog.timelines.of_scalars(run, rank)
            names = [] if timeline is None else self._catalog.timelines.series_names(timeline, SCALAR)
            has_whole = WHOLE not in names and whole_series(self._catalog, run, rank) is not None
            return sorted([*names, WHOLE]) if has_whole else names

    def scalars(
        self, run: str, rank: int, names: list[str], steps: StepRange = ALL_STEPS, max_points: int = 1000
    ) -> pd.DataFrame:
        """Read scalar series; see `Store.scalars`. Unknown names have no rows."""
        with self._lock:
            timeline = self._catalog.timelines.of_scalars(run, rank)
            numbers = (
                {}
                if timeline is None
                else {
                    number: name
                    for name in names
                    if (number := self._catalog.timelines.find_series(timeline, SCALAR, name)) is not None
                }
            )
            whole = whole_series(self._catalog, run, rank) if WHOLE in names else None
        points = max(1, max_points)
        with self._snapshot() as snapshot:
            found = read_scalars(snapshot, timeline or 0, numbers, steps=steps, max_points=points)
            if whole is None or whole[0] == timeline:
                return found
            # The lowest rank of those that hold the model has it, for all of them.
            more = read_scalars(snapshot, whole[0], {whole[1]: WHOLE}, steps=steps, max_points=points)
            return pd.concat([found, more]).sort_values(["name", "step"], ignore_index=True)

    def heatmap(
        self,
        run: str,
        rank: int,
        statistic: str = "grad_norm",
        steps: StepRange = ALL_STEPS,
        max_columns: int = 1000,
        unfolded: tuple[str, ...] = (),
    ) -> Heatmap | None:
        """Pool a statistic to at most `max_columns` columns; None before the first layout."""
        self._mend()
        with self._lock:
            request = plan_heatmap(self._catalog, run, rank, statistic=statistic, unfolded=unfolded)
        if request is None:
            return None
        with self._snapshot() as snapshot:
            return read_heatmap(snapshot, request, steps=steps, max_columns=max(1, max_columns))

    def statistic_names(self, run: str, rank: int = 0) -> list[str]:
        """Names of the statistics that `heatmap` has values for, sorted."""
        with self._lock:
            return statistic_names(self._catalog, run, rank)

    def histograms(
        self, run: str, rank: int, subject: str, steps: StepRange = ALL_STEPS
    ) -> list[MagnitudeHistogram]:
        """Newest histograms of a parameter, layer or module; see `Store.histograms`."""
        self._mend()
        with self._lock:
            wanted = plan_histograms(self._catalog, run, rank, subject=subject)
        if not wanted:
            return []
        with self._snapshot() as snapshot:
            return read_histograms(snapshot, wanted, steps=steps)

    def histogram_subjects(self, run: str, rank: int = 0) -> list[str]:
        """Names of what `histograms` can be asked for, in model order; empty where there are none."""
        with self._lock:
            return histogram_subjects(self._catalog, run, rank)

    def histogram_mark(self, run: str, rank: int = 0) -> int | None:
        """A number that changes with every new histogram; None where there are none."""
        with self._lock:
            return histogram_mark(self._catalog, run, rank)

    def events(self, run: str, rank: int | None = None) -> list[Event]:
        """Events in their latest state, by step; includes uncommitted ones."""
        return [event for event in self._events(run) if rank in (None, event.rank)]

    def _events(self, run: str, *, is_writer: bool = False) -> list[Event]:
        self._mend()
        with self._lock:
            self._require_open()
            found, mark = self._shelf.events(run), self._shelf.mark(run)
            mark_of_all = self._shelf.mark_of_all
        if found is None:
            with self._snapshot(is_writer=is_writer) as snapshot:
                found = runs.read_events(snapshot, run, odd=self._odd)
            # A view that is older than the mark lacks what has come since.
            if snapshot.events_mark >= mark_of_all:
                with self._lock:
                    self._shelf.put(run, found, mark=mark)
        return found

    def _document_sizes(self, run: str) -> list[tuple[object, int]]:
        with self._snapshot(is_writer=True) as snapshot:
            return document_sizes(snapshot, run)

    def event(self, run: str, event_id: str) -> Event | None:
        """One event; None if there is none."""
        with self._snapshot() as snapshot:
            found = runs.read_events(snapshot, run, event_id=event_id, odd=self._odd)
            return found[0] if found else None

    def run_of_event(self, event_id: str) -> str | None:
        """The run that has an event; None where none has it."""
        with self._snapshot() as snapshot:
            return runs.run_of_event(snapshot, event_id)

    def gaps(self, run: str, rank: int | None = None) -> list[GapRange]:
        """Known holes of the metrics streams."""
        with self._lock:
            return runs.list_gaps(self._catalog, run, rank=rank)
