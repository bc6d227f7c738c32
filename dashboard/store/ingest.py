"""Turns the encoded records of one batch into numpy blocks and catalogue entries.

Called by `DuckStore.append`: `decode` without a lock, `Intake` under the store's lock. No database here. A
record that does not decode, contradicts its stream or does not fit its layout is refused and counted. Of a
frame whose layout is not known the scalars are stored, which need none; that its tensors are not is counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from probe.errors import WireError
from probe.wire import (
    Document,
    Event,
    Frame,
    Gap,
    HostSample,
    Layout,
    Record,
    RunEnd,
    RunStart,
    StreamKey,
    decode_record,
    encode,
    member_number,
    member_run,
)
from probe.wire.records import MAX_SCALAR_NAME, MAX_SCALARS

from .catalog import Catalog, FullError
from .edge import MAX_SEQ, GapRow, Pending, ScalarBlock
from .histogram_blocks import histogram_rows
from .incarnation import MAX_RETURNS, Incarnation, IncarnationState
from .limits import MAX_MEMBERS, ItemLimits
from .protocol import StoredDocument
from .pyramid import FACTOR
from .rank_events import RankEvents
from .tensor_blocks import has_tensors, tensor_block
from .timelines import SCALAR

OF_EVERY_STEP: Final = frozenset({"loss", "grad_norm", "samples", "step_time_s", "probe_fraction"})
"""Scalars that a step's own frame has, and a later one that only adds to the step has not."""
_RANK_WRITER: Final = re.compile(r"^(\d{1,9})-(\d{1,19})$")


class RefusedError(ValueError):
    """A record that decodes and still cannot be stored."""


def decode(records: Iterable[bytes]) -> list[Record | None]:
    """Decode records; None for one that does not decode."""
    result: list[Record | None] = []
    for data in records:
        try:
            result.append(decode_record(data))
        except WireError:
            result.append(None)
    return result


def writer_of(key: StreamKey) -> tuple[int, int] | None:
    """Return (rank, incarnation) of a trainer's stream; None for a helper's."""
    match = _RANK_WRITER.match(key.writer)
    return (int(match.group(1)), int(match.group(2))) if match and int(match.group(2)) < MAX_SEQ else None


class Intake:
    """Sorts the records of one append. Used once."""

    def __init__(
        self, catalog: Catalog, key: StreamKey, *, now: float, ranks: RankEvents, items: ItemLimits
    ) -> None:
        self._catalog, self._ranks, self._items = catalog, ranks, items
        self._key = key
        self._now = now
        self._writer = writer_of(key)
        self._pending = Pending(writer=key.writer)
        self._frames: dict[tuple[int, int | None], list[tuple[int, Frame]]] = defaultdict(list)
        """By member and timeline; None: of a layout that is not known."""
        self._bare: list[tuple[int, int]] = []
        """(sequence number, step) of those whose tensors are left out, unless that was counted before."""
        self.members: set[str] = set()
        """Under which ids members were changed."""

    def take(self, first_seq: int, records: Sequence[Record | None]) -> tuple[Pending, int]:
        """Take decoded records in order.

        Returns:
            What is to be written, and how many records were refused.
        """
        refused = 0
        for seq, record in enumerate(records, first_seq):
            try:
                if record is None:
                    raise RefusedError("does not decode")
                self._take_one(seq, record)
            except FullError as error:
                self._catalog.limits.leave_out(self._key.run, str(error))
                refused += 1
            except RefusedError:
                refused += 1
        self._finish_frames()
        for event in self._ranks.found(self._key.run):
            try:
                self._take_event(event, None)
            except FullError as error:
                self._catalog.limits.leave_out(self._key.run, str(error))
        return self._pending, refused

    def _take_one(self, seq: int, record: Record) -> None:
        match record:
            case Frame():
                self._take_frame(seq, record)
            case Event():
                self._expect(record.run == self._key.run, "another run's event")
                self._take_event(self._of_member(record), seq)
                self._ranks.take_event(record)
                self._hear(record.rank, record.incarnation, record.time)
            case HostSample():
                self._take_host_sample(record)
            case RunStart():
                self._expect(record.run == self._key.run, "another run's start")
                self._take_start(record)
            case Layout():
                self._take_layout(record)
            case Document():
                rank, incarnation = self._trainer()
                found = StoredDocument(run=self._key.run, rank=rank, incarnation=incarnation, document=record)
                self._require(self._items.take_document(found.run, found.identity, len(record.body)))
                self._pending.documents.append(found)
                self._pending.document_seqs.append(seq)
            case Gap():
                self._take_gap(record)
            case RunEnd():
                entry = self._hear(*self._trainer(), record.time)
                for one in self._going_on(entry):
                    one.state.outcome = record.outcome
                entry.state.lost_before_write = record.lost_before_write
                self._ranks.take_end(entry, record)

    def _take_start(self, start: RunStart) -> None:
        """A start of a rank, or of a further member of one, which follows the member before it."""
        entry = self._hear(start.rank, start.incarnation, start.time)
        member = member_number(start.member)
        if start.member is not msgspec.UNSET or entry.state.newest_member:
            former = self._newest(entry)
            entry.state.newest_member = min(member, MAX_MEMBERS - 1)
            entry = self._hear(start.rank, start.incarnation, start.time, member=member)
            if former is not entry:
                former.state.followed_at = start.time
        self._catalog.describe(entry, start)

    def _take_layout(self, layout: Layout) -> None:
        rank, incarnation = self._trainer()
        member = member_number(layout.member)
        try:
            self._catalog.add_layout(self._run_of(member), rank, incarnation, layout)
        except FullError:
            raise
        except ValueError as error:
            raise RefusedError(str(error)) from error
        self._ranks.take_layout(self._hear(rank, incarnation, None, member=member), layout)

    # -- members

    def _run_of(self, member: int) -> str:
        """Return the id under which a member is kept.

        Raises:
            FullError: there are as many as a run may have.
        """
        if member >= MAX_MEMBERS:
            raise FullError(f"more than {MAX_MEMBERS:,} models of one run")
        run = member_run(self._key.run, member)
        self.members.add(run)
        return run

    def _newest(self, entry: Incarnation) -> Incarnation:
        """Return the newest member of a start of a rank; the start itself where there is one."""
        member = entry.state.newest_member
        return self._hear(entry.rank, entry.number, None, member=member) if member else entry

    def _going_on(self, entry: Incarnation) -> list[Incarnation]:
        """Return the members that are trained: the newest one, and older ones that have made steps again."""
        rank, number, newest = entry.rank, entry.number, self._newest(entry)
        known = self._catalog.incarnations
        if (member_run(entry.run, 1), rank, number) not in known:
            return [newest]
        older = [known.get((member_run(entry.run, member), rank, number)) for member in range(MAX_MEMBERS)]
        again = [m for m, one in enumerate(older) if one and one is not newest and not one.is_followed]
        return [newest, *(self._hear(rank, number, None, member=member) for member in again)]

    def _of_member(self, event: Event) -> Event:
        """Give an event the id under which its member is kept; a helper's is about the newest."""
        member = member_number(event.member)
        entry = self._catalog.incarnations.get((self._key.run, event.rank, event.incarnation))
        if self._writer is None and entry is not None and entry.state.newest_member:
            member = entry.state.newest_member
            event = msgspec.structs.replace(event, member=member)
        # Those of the members that are too many are the run's.
        kept = member if member < MAX_MEMBERS else 0
        return msgspec.structs.replace(event, run=member_run(event.run, kept)) if kept else event

    def _take_event(self, event: Event, seq: int | None) -> None:
        data = encode(event)
        self._require(self._items.take_event(event.run, event.id, len(data)))
        self._pending.events.append((event, data))
        self._pending.event_seqs.append(seq)

    def _require(self, problem: str | None) -> None:
        if problem is not None:
            raise FullError(problem)

    def _expect(self, condition: bool, message: str) -> None:
        if not condition:
            raise RefusedError(message)

    def _trainer(self) -> tuple[int, int]:
        if self._writer is None:
            raise RefusedError(f"not a trainer's stream: {self._key.writer}")
        return self._writer

    def _hear(self, rank: int, incarnation: int, time: float | None, *, member: int = 0) -> Incarnation:
        entry = self._catalog.incarnation(self._run_of(member), rank, incarnation)
        entry.hear(time, self._now)
        return entry

    def _take_host_sample(self, sample: HostSample) -> None:
        entry = self._hear(sample.rank, sample.incarnation, sample.time)
        entry.state.host_state = sample.state
        for one in self._going_on(entry):
            one.state.host_state = sample.state
            one.hear(sample.time, self._now)
        self._ranks.take_end(entry, sample)
        row = (self._key.run, sample.rank, sample.incarnation, sample.time, encode(sample))
        self._pending.host_samples.append(row)

    def _take_gap(self, gap: Gap) -> None:
        if gap.lost:
            self._take_loss(gap)
        elif gap.stream == "metrics" and gap.end_seq > gap.first_seq:
            state = self._hear(*self._trainer(), gap.time).state
            row = GapRow(
                run=self._key.run,
                writer=self._key.writer,
                source="journal",
                first_seq=gap.first_seq,
                end_seq=gap.end_seq,
                reason=gap.reason,
                first_step=state.last_step,
                last_step=None,
            )
            self._catalog.gaps.add(row)

    def _take_loss(self, gap: Gap) -> None:
        """Note records that were never written: the hole has as many numbers as they would have taken."""
        self._expect(gap.first_seq + gap.lost <= MAX_SEQ, "more losses than there are numbers")
        entry = self._newest(self._hear(*self._trainer(), gap.time))
        state = entry.state
        row = GapRow(
            run=entry.run,
            writer=self._key.writer,
            source="lost",
            first_seq=gap.first_seq,
            end_seq=gap.first_seq + gap.lost,
            reason=gap.reason,
            first_step=state.last_step if gap.first_step is None else gap.first_step,
            last_step=gap.last_step,
        )
        self._catalog.gaps.add(row)
        losses = self._catalog.gaps.of_writer(entry.run, self._key.writer, "lost")
        state.lost_before_write = min(sum(one.end_seq - one.first_seq for one in losses), MAX_SEQ)

    # -- frames

    def _take_frame(self, seq: int, frame: Frame) -> None:
        rank, incarnation = self._trainer()
        entry = self._hear(rank, incarnation, frame.time, member=frame.member)
        if frame.member:
            self._hear(rank, incarnation, frame.time)
        timeline = entry.layouts.get(frame.layout)
        frame = self._with_fewer_scalars(frame)
        if timeline is not None:
            _check_tensors(frame, len(self._catalog.layout(timeline)[1].parameters))
        is_detail = self._key.stream == "detail"
        is_new = is_detail or seq >= entry.state.taken
        if not is_detail:
            if is_new:
                entry.state.taken = seq + 1
                _note_step(entry.state, frame)
            self._catalog.close_gap(self._key, entry, seq=seq, step=frame.step)
        self._frames[frame.member, timeline].append((seq, frame))
        if timeline is None:
            if is_new and (has_tensors(frame) or frame.histograms):
                self._bare.append((seq, frame.step))
            return
        if not is_detail:
            self._ranks.take_frame(self._catalog, entry, frame)

    def _with_fewer_scalars(self, frame: Frame) -> Frame:
        """Leave out scalars that have no room, and count them; what the script has logged goes first."""
        named = {name: value for name, value in frame.scalars.items() if len(name) <= MAX_SCALAR_NAME}
        if len(named) > MAX_SCALARS:
            own_first = sorted(named, key=lambda name: name.startswith("log/"))
            named = {name: named[name] for name in own_first[:MAX_SCALARS]}
        left_out = len(frame.scalars) - len(named)
        if not left_out:
            return frame
        limit = f"names above {MAX_SCALAR_NAME:,} characters, or more than {MAX_SCALARS:,} values in one step"
        self._catalog.limits.leave_out(self._key.run, limit, count=left_out)
        return msgspec.structs.replace(frame, scalars=named)

    def _finish_frames(self) -> None:
        if not self._frames:
            return
        rank, incarnation = self._trainer()
        for member in {member for member, _ in self._frames}:
            frames = [item for (of, _), items in self._frames.items() if of == member for item in items]
            scalars = self._catalog.timelines.add(self._run_of(member), rank)
            if any(frame.scalars for _, frame in frames):
                self._pending.scalars.append(_scalar_block(self._catalog, scalars, incarnation, frames))
        for (_, timeline), frames in self._frames.items():
            if timeline is None:
                continue
            self._pending.histograms += histogram_rows(self._catalog, timeline, incarnation, frames)
            if any(has_tensors(frame) for _, frame in frames):
                self._pending.tensors.append(tensor_block(self._catalog, timeline, incarnation, frames))
                self._catalog.gaps.end_unnamed(self._key.run, self._key.writer)
        if self._bare:
            steps = [step for _, step in self._bare]
            self._catalog.gaps.add_unnamed(self._key.run, self._key.writer, seq=self._bare[0][0], steps=steps)


def _check_tensors(frame: Frame, parameters: int) -> None:
    """Refuse a frame that does not fit its layout."""
    for column in frame.columns:
        if len(column.data) != parameters * (4 if column.dtype == "f4" else 8):
            raise RefusedError(f"column {column.name!r} does not have {parameters} values")
    if frame.pooled not in (0, FACTOR):
        raise RefusedError(f"pooled by {frame.pooled} steps; the store pools by {FACTOR}")
    if frame.missing and len(frame.missing) * 8 < parameters:
        raise RefusedError("the mask of missing gradients is too short")


def _note_step(state: IncarnationState, frame: Frame) -> None:
    """Follow the newest step; a late frame that only adds to an older one does not set it back."""
    state.first_step = frame.step if state.first_step is None else min(state.first_step, frame.step)
    if frame.columns or "grad_norm" in frame.scalars:
        state.stage = frame.stage[:16]
    is_older = state.last_step is not None and frame.step < state.last_step
    only_adds = OF_EVERY_STEP.isdisjoint(frame.scalars) and not frame.columns
    if is_older and only_adds and (frame.scalars or has_tensors(frame)):
        return
    if is_older and state.last_step is not None:
        state.returns = [*state.returns, (frame.step, state.last_step)][-MAX_RETURNS:]
    state.last_step, state.last_time = frame.step, frame.time


def _scalar_block(
    catalog: Catalog, timeline: int, incarnation: int, frames: Sequence[tuple[int, Frame]]
) -> ScalarBlock:
    names = dict.fromkeys(name for _, frame in frames for name in frame.scalars)
    numbers = {
        name: number
        for name in names
        if (number := catalog.timelines.add_series(timeline, SCALAR, name)) is not None
    }
    kept = [{name: v for name, v in frame.scalars.items() if name in numbers} for _, frame in frames]
    counts = [len(scalars) for scalars in kept]
    return ScalarBlock(
        timeline=timeline,
        incarnation=incarnation,
        frame_steps=np.array([frame.step for _, frame in frames], dtype=np.int64),
        series=np.array([numbers[name] for scalars in kept for name in scalars], dtype=np.int64),
        step=np.repeat(np.array([frame.step for _, frame in frames], dtype=np.int64), counts),
        seq=np.repeat(np.array([seq for seq, _ in frames], dtype=np.int64), counts),
        time=np.repeat(np.array([frame.time for _, frame in frames], dtype=np.float64), counts),
        value=np.array([v for scalars in kept for v in scalars.values()], dtype=np.float64),
    )
