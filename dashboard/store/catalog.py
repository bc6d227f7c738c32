"""What the store knows without asking the database: streams, incarnations, layouts, series, numbers.

Filled from the database at opening, changed by `append` and `skip` under the store's lock; `writer.py` saves
what has changed with the next commit. Rows of data are not here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from probe.errors import WireError
from probe.wire import (
    Layout,
    Record,
    RunStart,
    SentStream,
    StreamKey,
    decode_record,
    encode,
    member_run,
)
from probe.wire.layer_values import Geometry, geometry_of
from probe.wire.records import RunId, WriterId

from .changes import Changes, PartChanges, SavedRows
from .edge import MAX_SEQ, GapRow
from .gaps import Gaps
from .incarnation import Incarnation, IncarnationState
from .layout_cache import LayoutCache
from .limits import Held, RunLimits
from .odd_rows import OddRows
from .protocol import StreamPosition
from .timelines import Numbers, Timelines

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_STREAM: Final = tuple[RunId, WriterId, SentStream, _Count, _Count, _Count, _Count]
_INCARNATION: Final = tuple[RunId, _Count, _Count, bytes, bytes]
_LAYOUT: Final = tuple[RunId, _Count, _Count, _Count, _Number, bytes]
_TIMELINE: Final = tuple[_Number, RunId, _Count, bytes]
_SERIES: Final = tuple[_Number, _Number, str, str]
_GAP: Final = tuple[RunId, WriterId, str, _Count, _Count, str, _Count | None, _Count | None]
"""The columns of the tables that are read at opening."""

ReadTable = Callable[[str], Iterable[tuple[Any, ...]]]
"""Returns the rows of a table of names, in the order of its columns; of layouts without their data."""


class FullError(ValueError):
    """A run has as many of something as it may; the message says of what."""


@dataclass(slots=True)
class StreamState:
    """Account of one stream as queued; `durable` is what the last commit saved."""

    next_seq: int = 0
    stored: int = 0
    gaps: int = 0
    dropped: int = 0
    durable: tuple[int, int, int, int] = (0, 0, 0, 0)

    def account(self) -> tuple[int, int, int, int]:
        """Return (next_seq, stored, gaps, dropped) as queued."""
        return self.next_seq, self.stored, self.gaps, self.dropped


class Catalog:
    """Names and numbers. Not thread-safe: the store's lock guards it."""

    def __init__(
        self, load_layout: Callable[[int], bytes], odd: OddRows, *, numbers: Numbers | None = None
    ) -> None:
        """Make an empty one.

        Args:
            load_layout: Reads the encoded layout of a timeline.
            odd: Takes the rows that cannot be read.
            numbers: Gives timelines and series their numbers; None counts them.
        """
        self._odd = odd
        self.streams: dict[StreamKey, StreamState] = {}
        self.incarnations: dict[tuple[str, int, int], Incarnation] = {}
        self._starts: dict[tuple[str, int], list[Incarnation]] = {}
        """The same by run and rank: one of a thousand ranks is asked for without looking at the others."""
        self.changes = PartChanges()
        self.limits = RunLimits()
        self.timelines = Timelines(self.changes, self.limits, numbers)
        self.gaps = Gaps(self.changes, self.limits)
        self._layouts = LayoutCache(load_layout, odd)
        self._newest_histograms: dict[int, tuple[int, int]] = {}

    # -- reading back

    def load(self, read: ReadTable) -> None:
        """Take what the tables say: all of it at first, later what another process has written.

        What is here and not yet committed stays.
        """
        for run, writer, stream, *account in self._rows(read, "streams", _STREAM):
            self._load_stream(StreamKey(run=run, writer=writer, stream=stream), StreamState(*account))
        for run, rank, number, start, kept in self._rows(read, "incarnations", _INCARNATION):
            self._load_incarnation(self._entry(run, rank, number), start, kept)
        for run, rank, number, layout, timeline, _ in self._rows(read, "layouts", _LAYOUT):
            known = self._entry(run, rank, number).layouts
            if layout not in known:
                known[layout] = timeline
                self.limits.add(run, "layouts")
        for timeline, run, rank, digest in self._rows(read, "timelines", _TIMELINE):
            self.timelines.keep(run, rank, digest, timeline)
        for series, timeline, kind, name in self._rows(read, "series", _SERIES):
            self.timelines.keep_series(timeline, kind, name, series)
        for values in self._rows(read, "gaps", _GAP):
            self.gaps.load(GapRow(**dict(zip(GapRow.__slots__, values, strict=True))))

    def _rows(self, read: ReadTable, table: str, form: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table that have its form; the others are noted."""
        for row in read(table):
            try:
                yield msgspec.convert(row, form)
            except msgspec.ValidationError:
                self._odd.add(table, repr(row[:4])[:200])

    def _load_stream(self, key: StreamKey, found: StreamState) -> None:
        state = self.streams.get(key)
        if state is None:
            state = self.streams[key] = StreamState()
            self.limits.add(key.run, "streams")
        if found.next_seq >= state.durable[0]:
            state.durable = found.account()
        if found.next_seq >= state.next_seq:
            state.next_seq, state.stored, state.gaps, state.dropped = found.account()

    def _load_incarnation(self, entry: Incarnation, start: bytes, kept: bytes) -> None:
        """Fill in what of it can be read."""
        if start and entry.start is None:
            self.limits.add(entry.run, "start_bytes", more=len(start))
        try:
            entry.start = _run_start(decode_record(start)) if start else entry.start
        except WireError:
            self._odd.add("starts", str(entry.number))
        try:
            entry.state = entry.state.merged(msgspec.msgpack.decode(kept, type=IncarnationState))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._odd.add("states", str(entry.number))

    def has_detail(self, run: str, rank: int) -> bool:
        """Whether a helper has sent statistics of a rank apart."""
        writers = (f"{rank}-{key[2]}" for key in self.incarnations if key[:2] == (run, rank))
        return any(StreamKey(run=run, writer=writer, stream="detail") in self.streams for writer in writers)

    # -- incarnations

    def _entry(self, run: str, rank: int, number: int) -> Incarnation:
        entry = self.incarnations.get((run, rank, number))
        if entry is None:
            entry = self.incarnations[run, rank, number] = Incarnation(run, rank, number)
            self._starts.setdefault((run, rank), []).append(entry)
            self.limits.add(run, "incarnations")
        return entry

    def incarnation(self, run: str, rank: int, number: int) -> Incarnation:
        """Return the entry, made if needed, for changing: the next commit saves it.

        Raises:
            FullError: the run may not have one more.
        """
        if (run, rank, number) not in self.incarnations:
            self._require_room(run, "incarnations")
        self.changes.now.incarnations[run, rank, number] = None
        return self._entry(run, rank, number)

    def describe(self, entry: Incarnation, start: RunStart) -> None:
        """Keep what a start says of itself.

        Raises:
            FullError: the descriptions of the run's starts would take too much memory.
        """
        before = 0 if entry.start is None else len(encode(entry.start))
        more = len(encode(start)) - before
        self._require_room(entry.run, "start_bytes", more=more)
        self.limits.add(entry.run, "start_bytes", more=more)
        entry.start = start

    def newest_framed(self, entry: Incarnation) -> Incarnation:
        """Return which of the models that a start makes one after the other the newest frame is of."""
        runs = (member_run(entry.run, member) for member in range(1, entry.state.newest_member + 1))
        known = (self.incarnations.get((run, entry.rank, entry.number)) for run in runs)
        return max((entry, *filter(None, known)), key=lambda one: one.state.taken)

    def close_gap(self, key: StreamKey, entry: Incarnation, *, seq: int, step: int) -> None:
        """Note the step of the first frame after a hole; it may be of another model than that before it."""
        for run in self.gaps.open_runs(key.writer, before=seq):
            model = self.incarnations.get((run, entry.rank, entry.number))
            if run == key.run or (model is not None and model.description().run == key.run):
                self.gaps.close(run, key.writer, step, of=entry.run)

    def _require_room(self, run: str, what: Held, *, more: int = 1) -> None:
        if not self.limits.has_room(run, what, more=more):
            raise FullError(self.limits.reason(what))

    def newest(self, run: str, rank: int) -> Incarnation | None:
        """Return the rank's newest incarnation."""
        return max(self.starts_of(run, rank), key=lambda entry: entry.number, default=None)

    def starts_of(self, run: str, rank: int) -> Sequence[Incarnation]:
        """Return the rank's incarnations, in no order; not to be changed."""
        return self._starts.get((run, rank), ())

    # -- committing

    def snapshot(self, changes: Changes) -> SavedRows:
        """Copy the changed entries as rows."""
        entries = [self.incarnations[key] for key in changes.incarnations]
        return SavedRows(
            streams=[(key, self.streams[key].account()) for key in changes.streams],
            incarnations=[
                (
                    e.run,
                    e.rank,
                    e.number,
                    encode(e.start) if e.start else b"",
                    msgspec.msgpack.encode(e.state),
                )
                for e in entries
            ],
            layouts=changes.layouts,
            timelines=changes.timelines,
            series=changes.series,
            gaps=[self.gaps.row(key) for key in changes.gaps],
            known=[(e.state.taken, e.state.words_known()) for e in entries],
            part=self.changes.part,
        )

    def settle(self, saved: SavedRows) -> dict[StreamKey, int]:
        """Note that a commit is durable; return the next sequence numbers that moved."""
        moved = {}
        for key, account in saved.streams:
            # Another process may have come further meanwhile.
            self.streams[key].durable = max(account, self.streams[key].durable, key=lambda found: found[0])
            moved[key] = account[0]
        self._layouts.note_saved(row[4] for row in saved.layouts)
        return moved

    # -- layouts

    def add_layout(self, run: str, rank: int, incarnation: int, layout: Layout) -> None:
        """Register a layout; one with the same names as an earlier one of the rank continues its rows.

        Raises:
            ValueError: its parameters name layers that it does not have, or the run has too many layouts.
        """
        self._require_room(run, "layouts")
        geometry = geometry_of(layout)
        content = encode(msgspec.structs.replace(layout, layout=0))
        timeline = self.timelines.add(run, rank, hashlib.sha256(content).digest())
        known = self.incarnation(run, rank, incarnation).layouts
        is_known = known.get(layout.layout) == timeline
        self._layouts.put(timeline, layout, geometry, size=len(content), is_saved=is_known)
        if is_known:
            return
        known[layout.layout] = timeline
        self.limits.add(run, "layouts")
        self.changes.now.layouts.append((run, rank, incarnation, layout.layout, timeline, encode(layout)))

    def layout(self, timeline: int) -> tuple[Layout, Geometry]:
        """Return a registered layout and its geometry."""
        return self._layouts.get(timeline)

    def newest_layout(self, run: str, rank: int) -> tuple[int, Layout] | None:
        """Return timeline and layout of the newest incarnation that has one."""
        having = [entry for entry in self.starts_of(run, rank) if entry.layouts]
        if not having:
            return None
        layouts = max(having, key=lambda entry: entry.number).layouts
        number = max(layouts)
        return layouts[number], msgspec.structs.replace(self.layout(layouts[number])[0], layout=number)

    # -- forgetting

    def ranks_over(self, now: float, *, quiet_s: float) -> set[tuple[str, int]]:
        """Return run and rank of those that have ended, or have said nothing for `quiet_s` seconds."""
        newest: dict[tuple[str, int], Incarnation] = {}
        for (run, rank, number), entry in self.incarnations.items():
            if (run, rank) not in newest or number > newest[run, rank].number:
                newest[run, rank] = entry
        return {key for key, entry in newest.items() if entry.is_over(now, quiet_s=quiet_s)}

    def forget_run(self, run: str) -> None:
        """Drop everything of a run that has been deleted; its numbers may be used again."""
        self.limits.forget(run)
        gone = self.timelines.of_run(run)
        self.changes.forget_run(run, set(gone))
        self.timelines.forget_run(run)
        self.gaps.forget_run(run)
        self.streams = {key: state for key, state in self.streams.items() if key.run != run}
        self.incarnations = {key: entry for key, entry in self.incarnations.items() if key[0] != run}
        self._starts = {key: entries for key, entries in self._starts.items() if key[0] != run}
        for timeline in gone:
            self._layouts.forget(timeline)
            self._newest_histograms.pop(timeline, None)

    # -- histograms

    def note_histogram(self, timeline: int, incarnation: int, seq: int) -> None:
        """Note that one was appended."""
        newest = self._newest_histograms.get(timeline, (-1, -1))
        self._newest_histograms[timeline] = max(newest, (incarnation, seq))

    def newest_histogram(self, timeline: int) -> tuple[int, int]:
        """Return (incarnation, sequence number) of the newest one appended since opening; zeros if none."""
        return self._newest_histograms.get(timeline, (0, 0))

    # -- streams

    def stream(self, key: StreamKey) -> StreamState:
        """Return the account of a stream for changing: the next commit saves it."""
        self.changes.now.streams[key] = None
        if key not in self.streams:
            self.streams[key] = StreamState()
            self.limits.add(key.run, "streams")
        return self.streams[key]

    def refuses(self, key: StreamKey) -> str | None:
        """Return why a stream is not taken: it is new, and there is no room for it."""
        if key in self.streams:
            return None
        if reason := self.limits.refuses(key.run):
            return reason
        if self.limits.has_room(key.run, "streams"):
            return None
        reason = self.limits.reason("streams")
        self.limits.leave_out(key.run, reason)
        return reason


def position_of(key: StreamKey, account: tuple[int, int, int, int]) -> StreamPosition:
    """Return an account as the protocol's record."""
    next_seq, stored, gaps, dropped = account
    return StreamPosition(key=key, next_seq=next_seq, stored=stored, gaps=gaps, dropped=dropped)


def _run_start(record: Record) -> RunStart:
    if not isinstance(record, RunStart):
        raise WireError("another record than the start of a run")
    return record
