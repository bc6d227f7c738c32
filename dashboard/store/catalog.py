"""What the store knows without asking the database: streams, incarnations, layouts, series, numbers.

Filled from the database at opening, changed by `append` and `skip` under the store's lock; `writer.py` saves
what has changed with the next commit. Rows of data are not here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol

import msgspec

from probe.delivery.recorder.process_identity import is_gone
from probe.errors import WireError
from probe.wire import Layout, Record, RunStart, SentStream, StreamKey, decode_record, encode
from probe.wire.layer_values import Geometry, geometry_of
from probe.wire.records import RunId, WriterId

from .edge import MAX_SEQ, GapRow
from .layout_cache import LayoutCache
from .limits import MAX_SERIES, Held, RunLimits
from .odd_rows import OddRows
from .protocol import RankSummary, StreamPosition

SILENT_AFTER_S: Final = 30.0
"""A rank that says nothing for this long, and has not ended, is silent (the helper speaks each second)."""
GONE_AFTER_S: Final = 3.0
"""A rank that says nothing for this long is looked for among this machine's processes: the helper that would
say that it was killed may have been killed too. Until then its last words may be on their way."""
LIVE_WITHIN_S: Final = 300.0
"""Records that arrive within this time of their own clock count as live: clocks need not agree."""

MAX_RETURNS: Final = 64
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_STREAM: Final = tuple[RunId, WriterId, SentStream, _Count, _Count, _Count, _Count]
_INCARNATION: Final = tuple[RunId, _Count, _Count, bytes, bytes]
_LAYOUT: Final = tuple[RunId, _Count, _Count, _Count, _Number, bytes]
_TIMELINE: Final = tuple[_Number, RunId, _Count, bytes]
_SERIES: Final = tuple[_Number, _Number, str, str]
_GAP: Final = tuple[RunId, WriterId, str, _Count, _Count, str, _Count | None, _Count | None]
"""The columns of the tables that are read at opening."""

SCALAR: Final = "scalar"
LAYER: Final = "layer"
PARAMETER: Final = "parameter"
MODULE: Final = "module"
HISTOGRAM: Final = "histogram"


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


class IncarnationState(msgspec.Struct, kw_only=True):
    """What is known about one incarnation of one rank besides its `RunStart`."""

    first_step: int | None = None
    last_step: int | None = None
    """Step of the newest frame, not the largest one."""
    last_time: float | None = None
    returns: list[tuple[int, int]] = []
    """(step, newest step before) wherever the numbers went back: the newest `MAX_RETURNS`."""
    heard: float | None = None
    """Newest record time (the training machine's clock), UNIX seconds."""
    arrived: float | None = None
    """When something last arrived (our clock)."""
    outcome: str | None = None
    host_state: str | None = None
    lost_before_write: int = 0
    stage: str | None = None
    """Which gradient the newest frame with one has measured."""
    taken: int = 0
    """Frames before this number are in it already: where they come again, nothing has gone back."""

    def words_known(self) -> int:
        """Return a number below 2**62 that grows with what was said beside frames; theirs is `taken`."""
        heard = int(min(max(0.0, self.heard or 0.0), 2e9) * 1000)
        return (self.outcome is not None) << 61 | heard << 20 | min(self.taken, (1 << 20) - 1)

    def merged(self, other: IncarnationState) -> IncarnationState:
        """Return what both know together; each may have taken records that the other has not."""
        frames = self if self.taken > other.taken else other
        words = self if self.words_known() > other.words_known() else other
        return IncarnationState(
            first_step=frames.first_step,
            last_step=frames.last_step,
            last_time=frames.last_time,
            returns=frames.returns,
            stage=frames.stage,
            taken=frames.taken,
            heard=_latest(self.heard, other.heard),
            arrived=_latest(self.arrived, other.arrived),
            outcome=words.outcome,
            host_state=words.host_state or self.host_state or other.host_state,
            lost_before_write=max(self.lost_before_write, other.lost_before_write),
        )


def _latest(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one


@dataclass(slots=True)
class Incarnation:
    """One start of one rank of a run."""

    run: str
    rank: int
    number: int
    start: RunStart | None = None
    state: IncarnationState = field(default_factory=IncarnationState)
    layouts: dict[int, int] = field(default_factory=dict)
    """Layout number -> timeline."""
    is_gone: bool = False
    """Whether its process was looked for on this machine, and is no more: that does not change."""

    def description(self) -> RunStart:
        """Return its `RunStart`, or what can be said when that record was lost."""
        return self.start or RunStart(
            run=self.run, rank=self.rank, incarnation=self.number, time=self.number / 1e9
        )

    def hear(self, record_time: float | None, now: float) -> None:
        """Note that something arrived."""
        self.state.arrived = now
        if record_time is not None and (self.state.heard is None or record_time > self.state.heard):
            self.state.heard = record_time

    def summary(self, now: float) -> RankSummary:
        """Return the line of the rank selector."""
        state = self.state
        return RankSummary(
            rank=self.rank,
            incarnation=self.number,
            state=self._word(now),
            first_step=state.first_step,
            last_step=state.last_step,
            last_time=state.last_time,
            lost_before_write=state.lost_before_write,
        )

    def is_over(self, now: float, *, quiet_s: float) -> bool:
        """Whether it has ended, or has said nothing for so long that it may have."""
        has_ended = self.state.outcome is not None or self.state.host_state in ("killed", "ended")
        return has_ended or self._silent_s(now) > quiet_s

    def _silent_s(self, now: float) -> float:
        arrived = self.state.arrived or 0.0
        heard = self.description().time if self.state.heard is None else self.state.heard
        return now - (arrived if abs(arrived - heard) <= LIVE_WITHIN_S else heard)

    def _word(self, now: float) -> str:
        state = self.state
        if state.outcome is not None:
            return state.outcome
        if state.host_state == "killed":
            return "killed"
        if state.host_state == "ended":
            return "finished"
        silent_s = self._silent_s(now)
        if silent_s > GONE_AFTER_S and self._has_gone():
            return "killed"
        return "running" if silent_s <= SILENT_AFTER_S else "silent"

    def _has_gone(self) -> bool:
        """Whether its process, which has written no end, is no more as far as this machine sees."""
        self.is_gone = self.is_gone or (self.start is not None and is_gone(self.start) is True)
        return self.is_gone


@dataclass(slots=True)
class Changes:
    """What has changed since the last commit, besides the edge."""

    streams: dict[StreamKey, None] = field(default_factory=dict)
    incarnations: dict[tuple[str, int, int], None] = field(default_factory=dict)
    layouts: list[tuple[str, int, int, int, int, bytes]] = field(default_factory=list)
    timelines: list[tuple[int, str, int, bytes]] = field(default_factory=list)
    series: list[tuple[int, int, str, str]] = field(default_factory=list)
    gaps: dict[tuple[str, str, str, int], None] = field(default_factory=dict)

    def followed_by(self, later: Changes) -> Changes:
        """Return the union: what a failed commit leaves for the next one."""
        return Changes(
            streams=self.streams | later.streams,
            incarnations=self.incarnations | later.incarnations,
            layouts=self.layouts + later.layouts,
            timelines=self.timelines + later.timelines,
            series=self.series + later.series,
            gaps=self.gaps | later.gaps,
        )

    def without(self, run: str, timelines: Collection[int]) -> Changes:
        """Return what is left without a run, whose timelines are these."""
        return Changes(
            streams={key: None for key in self.streams if key.run != run},
            incarnations={key: None for key in self.incarnations if key[0] != run},
            layouts=[row for row in self.layouts if row[0] != run],
            timelines=[row for row in self.timelines if row[1] != run],
            series=[row for row in self.series if row[1] not in timelines],
            gaps={key: None for key in self.gaps if key[0] != run},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRows:
    """The rows of a commit's catalogue part, copied so that appends may go on meanwhile."""

    streams: list[tuple[StreamKey, tuple[int, int, int, int]]]
    incarnations: list[tuple[str, int, int, bytes, bytes]]
    layouts: list[tuple[str, int, int, int, int, bytes]]
    timelines: list[tuple[int, str, int, bytes]]
    series: list[tuple[int, int, str, str]]
    gaps: list[GapRow]
    known: list[tuple[int, int]]
    """How much the state of each of the incarnations knows of frames, and beside them."""
    part: int = 0
    """Of the store's: the one that the commit is of."""


class Numbers(Protocol):
    """Numbers that several processes give alike."""

    def of_timeline(self, run: str, rank: int, digest: bytes) -> int:
        """The number of the scalars of a rank (empty digest), or of a layout of it."""
        ...

    def of_series(self, timeline: int, kind: str, name: str) -> int:
        """The number of a series of a timeline."""
        ...


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
        self._numbers = numbers
        self.streams: dict[StreamKey, StreamState] = {}
        self.incarnations: dict[tuple[str, int, int], Incarnation] = {}
        self._starts: dict[tuple[str, int], list[Incarnation]] = {}
        """The same by run and rank: one of a thousand ranks is asked for without looking at the others."""
        self.gaps: dict[tuple[str, str, str, int], GapRow] = {}
        self.open_gaps: dict[tuple[str, str], GapRow] = {}
        self._unnamed: dict[tuple[str, str], GapRow] = {}
        """By run and writer: the newest steps whose layout is not known."""
        self.part = 0
        """Of the store's: whose stream is being taken, or committed. What changes is saved with it."""
        self._changes: dict[int, Changes] = {}
        self.limits = RunLimits()
        self._layouts = LayoutCache(load_layout, odd)
        self._timelines: dict[tuple[str, int, bytes], int] = {}
        self._rank_of: dict[int, tuple[str, int]] = {}
        self._of_layouts: dict[tuple[str, int], list[int]] = {}
        self._series: dict[tuple[int, str, str], int] = {}
        self._names: dict[tuple[int, str], list[str]] = {}
        self._newest_histograms: dict[int, tuple[int, int]] = {}
        self._next_series = 0

    @property
    def changes(self) -> Changes:
        """What of the part has changed since its last commit."""
        return self._changes.setdefault(self.part, Changes())

    @changes.setter
    def changes(self, changes: Changes) -> None:
        self._changes[self.part] = changes

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
            self._keep_timeline(run, rank, digest, timeline)
        for series, timeline, kind, name in self._rows(read, "series", _SERIES):
            if (timeline, kind, name) not in self._series:
                self._keep_series(timeline, kind, name, series)
        for values in self._rows(read, "gaps", _GAP):
            row = GapRow(**dict(zip(GapRow.__slots__, values, strict=True)))
            held = self.gaps.get((row.run, row.writer, row.source, row.first_seq))
            if held is None or held.known() <= row.known():
                self._keep_gap(row)

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
        self.changes.incarnations[run, rank, number] = None
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
            gaps=[self.gaps[key] for key in changes.gaps],
            known=[(e.state.taken, e.state.words_known()) for e in entries],
            part=self.part,
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

    # -- layouts and series

    def add_layout(self, run: str, rank: int, incarnation: int, layout: Layout) -> None:
        """Register a layout; one with the same names as an earlier one of the rank continues its rows.

        Raises:
            ValueError: its parameters name layers that it does not have, or the run has too many layouts.
        """
        self._require_room(run, "layouts")
        geometry = geometry_of(layout)
        content = encode(msgspec.structs.replace(layout, layout=0))
        timeline = self._timeline(run, rank, hashlib.sha256(content).digest())
        known = self.incarnation(run, rank, incarnation).layouts
        is_known = known.get(layout.layout) == timeline
        self._layouts.put(timeline, layout, geometry, size=len(content), is_saved=is_known)
        if is_known:
            return
        known[layout.layout] = timeline
        self.limits.add(run, "layouts")
        self.changes.layouts.append((run, rank, incarnation, layout.layout, timeline, encode(layout)))

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

    def tensor_timelines(self, run: str, rank: int) -> list[int]:
        """Return the timelines of all layouts of the rank, oldest first."""
        return list(self._of_layouts.get((run, rank), ()))

    def scalar_timeline(self, run: str, rank: int) -> int:
        """Return the number of the rank's scalar timeline, made if needed."""
        return self._timeline(run, rank, b"")

    def _timeline(self, run: str, rank: int, digest: bytes) -> int:
        number = self._timelines.get((run, rank, digest))
        if number is None:
            if self._numbers is None:
                number = max(self._timelines.values(), default=-1) + 1
            else:
                number = self._numbers.of_timeline(run, rank, digest)
            self._keep_timeline(run, rank, digest, number)
            self.changes.timelines.append((number, run, rank, digest))
        return number

    def _keep_timeline(self, run: str, rank: int, digest: bytes, number: int) -> None:
        if digest and (run, rank, digest) not in self._timelines:
            self._of_layouts.setdefault((run, rank), []).append(number)
        self._timelines[run, rank, digest] = number
        self._rank_of[number] = run, rank

    def add_series(self, timeline: int, kind: str, name: str) -> int | None:
        """Return the number of a series, made if needed; None, counted, where there is no room for it."""
        number = self._series.get((timeline, kind, name))
        if number is None:
            run = self.run_of(timeline)
            is_full = len(self._names.get((timeline, kind), ())) >= MAX_SERIES
            if is_full or not self.limits.has_room(run, "series"):
                too_many = f"more than {MAX_SERIES:,} series of a rank or layout"
                self.limits.leave_out(run, too_many if is_full else self.limits.reason("series"))
                return None
            numbers = self._numbers
            number = self._next_series if numbers is None else numbers.of_series(timeline, kind, name)
            self._keep_series(timeline, kind, name, number)
            self.changes.series.append((number, timeline, kind, name))
        return number

    def run_of(self, timeline: int) -> str:
        """Return the run that a timeline is of."""
        return self._rank_of[timeline][0]

    def rank_of(self, timeline: int) -> tuple[str, int] | None:
        """Return the run and the rank that a timeline is of; None where there is none of that number."""
        return self._rank_of.get(timeline)

    def find_series(self, timeline: int, kind: str, name: str) -> int | None:
        """Return the number of a series; None if nothing of it was ever appended."""
        return self._series.get((timeline, kind, name))

    def find_scalar_timeline(self, run: str, rank: int) -> int | None:
        """Return the number of the rank's scalar timeline; None if it has no scalars."""
        return self._timelines.get((run, rank, b""))

    def scalar_timelines(self, timelines: Collection[int]) -> dict[tuple[str, int], int]:
        """Return (run, rank) -> scalar timeline of those of the given numbers."""
        return {
            (run, rank): number
            for (run, rank, digest), number in self._timelines.items()
            if not digest and number in timelines
        }

    def series_names(self, timeline: int, kind: str) -> list[str]:
        """Return the sorted names of a timeline's series."""
        return sorted(self._names.get((timeline, kind), ()))

    def _keep_series(self, timeline: int, kind: str, name: str, number: int) -> None:
        self._series[timeline, kind, name] = number
        self._next_series = max(self._next_series, number + 1)
        if (owner := self._rank_of.get(timeline)) is not None:
            self.limits.add(owner[0], "series")
        self._names.setdefault((timeline, kind), []).append(name)

    # -- forgetting

    def timeline_names(self) -> dict[int, tuple[str, int, bool]]:
        """Return timeline -> its run, its rank, and whether it has scalars."""
        return {
            timeline: (run, rank, not digest) for (run, rank, digest), timeline in self._timelines.items()
        }

    def ranks_over(self, now: float, *, quiet_s: float) -> set[tuple[str, int]]:
        """Return run and rank of those that have ended, or have said nothing for `quiet_s` seconds."""
        newest: dict[tuple[str, int], Incarnation] = {}
        for (run, rank, number), entry in self.incarnations.items():
            if (run, rank) not in newest or number > newest[run, rank].number:
                newest[run, rank] = entry
        return {key for key, entry in newest.items() if entry.is_over(now, quiet_s=quiet_s)}

    def timelines_of(self, run: str) -> list[int]:
        """Return the timelines of all ranks of a run."""
        return [timeline for (name, _, _), timeline in self._timelines.items() if name == run]

    def forget_run(self, run: str) -> None:
        """Drop everything of a run that has been deleted; its numbers may be used again."""
        self.limits.forget(run)
        gone = set(self.timelines_of(run))
        self._changes = {part: changes.without(run, gone) for part, changes in self._changes.items()}
        self.streams = {key: state for key, state in self.streams.items() if key.run != run}
        self.incarnations = {key: entry for key, entry in self.incarnations.items() if key[0] != run}
        self._starts = {key: entries for key, entries in self._starts.items() if key[0] != run}
        self._of_layouts = {key: numbers for key, numbers in self._of_layouts.items() if key[0] != run}
        self.gaps = {key: row for key, row in self.gaps.items() if key[0] != run}
        self.open_gaps = {key: row for key, row in self.open_gaps.items() if key[0] != run}
        self._unnamed = {key: row for key, row in self._unnamed.items() if key[0] != run}
        self._timelines = {key: number for key, number in self._timelines.items() if key[0] != run}
        self._series = {key: number for key, number in self._series.items() if key[0] not in gone}
        self._names = {key: names for key, names in self._names.items() if key[0] not in gone}
        for timeline in gone:
            self._layouts.forget(timeline)
            self._rank_of.pop(timeline, None)
            self._newest_histograms.pop(timeline, None)

    # -- histograms

    def note_histogram(self, timeline: int, incarnation: int, seq: int) -> None:
        """Note that one was appended."""
        newest = self._newest_histograms.get(timeline, (-1, -1))
        self._newest_histograms[timeline] = max(newest, (incarnation, seq))

    def newest_histogram(self, timeline: int) -> tuple[int, int]:
        """Return (incarnation, sequence number) of the newest one appended since opening; zeros if none."""
        return self._newest_histograms.get(timeline, (0, 0))

    # -- streams and gaps

    def stream(self, key: StreamKey) -> StreamState:
        """Return the account of a stream for changing: the next commit saves it."""
        self.changes.streams[key] = None
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

    def add_gap(self, row: GapRow) -> None:
        """Note a hole; one that continues the stream's open one extends it."""
        previous = self.open_gaps.get((row.run, row.writer))
        if row.source == "skip" and previous is not None and previous.end_seq == row.first_seq:
            row = dataclasses.replace(previous, end_seq=row.end_seq)
        key = (row.run, row.writer, row.source, row.first_seq)
        if row.source in ("skip", "journal") and (known := self.gaps.get(key)) is not None:
            row = dataclasses.replace(row, first_step=known.first_step)  # said again
        if key not in self.gaps and not self.limits.has_room(row.run, "gaps"):
            self.limits.leave_out(row.run, self.limits.reason("gaps"))
            return
        self._keep_gap(row)
        self.changes.gaps[row.run, row.writer, row.source, row.first_seq] = None

    def add_unnamed(self, run: str, writer: str, *, seq: int, steps: Sequence[int]) -> None:
        """Note steps that are stored without their tensors: nobody has said what their rows are."""
        row = self._unnamed.get((run, writer)) or GapRow(
            run=run, writer=writer, source="layout", first_seq=seq, end_seq=seq,
            reason="", first_step=min(steps), last_step=max(steps),
        )  # fmt: skip
        first, last = row.first_step, row.last_step
        self.add_gap(
            dataclasses.replace(
                row,
                end_seq=row.end_seq + len(steps),
                first_step=min(steps if first is None else (*steps, first)),
                last_step=max(steps if last is None else (*steps, last)),
            )
        )

    def end_unnamed(self, run: str, writer: str) -> None:
        """Note that steps have a layout again."""
        self._unnamed.pop((run, writer), None)

    def gaps_of(self, run: str, writer: str, source: str) -> list[GapRow]:
        """Return the holes of a writer's metrics that are told in one way."""
        return [row for key, row in self.gaps.items() if key[:3] == (run, writer, source)]

    def close_gap(self, run: str, writer: str, step: int) -> None:
        """Note the step of the first frame after a hole."""
        row = self.open_gaps.pop((run, writer), None)
        if row is not None:
            self.add_gap(dataclasses.replace(row, last_step=step))

    def _keep_gap(self, row: GapRow) -> None:
        key = (row.run, row.writer, row.source, row.first_seq)
        if key not in self.gaps:
            self.limits.add(row.run, "gaps")
        self.gaps[key] = row
        if row.source == "skip" and row.last_step is None:
            self.open_gaps[row.run, row.writer] = row
        elif row.source == "skip":
            if self.open_gaps.get((row.run, row.writer), row).first_seq == row.first_seq:
                self.open_gaps.pop((row.run, row.writer), None)
        elif row.source == "layout":
            self._unnamed[row.run, row.writer] = row


def position_of(key: StreamKey, account: tuple[int, int, int, int]) -> StreamPosition:
    """Return an account as the protocol's record."""
    next_seq, stored, gaps, dropped = account
    return StreamPosition(key=key, next_seq=next_seq, stored=stored, gaps=gaps, dropped=dropped)


def _run_start(record: Record) -> RunStart:
    if not isinstance(record, RunStart):
        raise WireError("another record than the start of a run")
    return record
