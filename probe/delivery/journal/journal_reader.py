"""Reads a spool: lists its runs and writers, follows a stream while it is still being written.

Used by the helper, by the dashboard's ingest and by the offline commands. A reader never changes a file: a
torn tail is what a live writer's unfinished record looks like. What cannot be read becomes a `Skipped`, and
so does what the writer's account has and the end of the stream has not, once the writer is gone.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ...wire import BATCH_BYTES, Gap, RunEnd, StreamName
from .account import read_account
from .folder_changes import FolderChanges
from .segment_cursor import Chunk as Chunk
from .segment_cursor import Cursor, ReplacedError
from .segment_cursor import Skipped as Skipped
from .segment_files import (
    RING_NAME,
    Claim,
    Segment,
    check_segment,
    is_beyond_end,
    list_files,
    own_segments,
)

_MOST_REPLACED: Final = 8
"""So many files that change while they are read are looked at again; then the next `poll` goes on."""
NOT_THERE: Final = "not in the folder"
"""Of records that no `Gap` tells of: the folder was removed in mid-run, or its disk was unmounted, say."""
_run_ends: Final = msgspec.msgpack.Decoder(RunEnd)
_gaps: Final = msgspec.msgpack.Decoder(Gap)


class StreamTail(msgspec.Struct, frozen=True):
    """Where the newest segment of a stream ends."""

    path: Path
    next_seq: int
    size: int
    """Bytes up to the end of the last intact record; 0 when not even the header is complete."""
    damaged: bool
    """Whether something unreadable follows that is no torn tail: the segment must not be continued."""


class StreamFollower:
    """Reads one stream in order and goes on where it stopped; holds no file open between calls.

    A `poll` that finds nothing new costs two `stat` calls. Not thread-safe.

    Args:
        folder: the writer's.
        stream: which one.
        from_seq: number to begin with.
        to_end: behind the last segment of a writer that is gone give what is missing there by its account;
            of the metrics also what only the ring of a killed trainer holds, of the events what it has lost,
            with the numbers that they get when somebody takes them. Nothing is written.
    """

    def __init__(self, folder: Path, stream: StreamName, *, from_seq: int = 0, to_end: bool = False) -> None:
        self.folder = folder
        self._to_end = to_end
        self._with_ring = to_end and stream != "host"
        self._is_over = False
        self.stream: StreamName = stream
        self.next_seq = from_seq
        """The number that the next `poll` begins with."""
        self._segments: list[Segment] = []
        self._changes = FolderChanges(folder)
        self._looked_at: set[str] = set()
        self._passed_over: list[str] = []
        self._told = 0
        """So many of these have been given."""
        self._cursor: Cursor | None = None
        self._by_run_end = (-1, 0)
        """Size of the events when their end was last looked for, and what it says."""

    def seek(self, seq: int) -> None:
        """Go to a number, backwards too; the next `poll` begins there."""
        self.next_seq = seq
        self._cursor = None

    def writer_is_over(self) -> None:
        """Take for granted that nothing more will be written, and tell what is missing at the end."""
        self._to_end = self._is_over = True

    def poll(self, max_bytes: int = BATCH_BYTES) -> Chunk | Skipped | None:
        """Return the next records (at most `max_bytes`, but at least one), a hole, or None for now."""
        found = self._poll(max_bytes)
        if found is None and self._to_end:
            found = self._poll_end(max_bytes)
        return found

    def _poll_end(self, max_bytes: int) -> Chunk | Skipped | None:
        """Return what a ring holds beyond the journal, and what neither has; nobody may write meanwhile."""
        written = self._written()
        with_ring = self._with_ring and has_ring(self.folder)
        if not with_ring and written <= self.next_seq:
            # Who takes a ring removes it last: what was in it may have come to the journal just now.
            return self._poll(max_bytes) if self._with_ring else None
        # The journal's end; what has been read beyond that was a ring's.
        end = max(0 if self._cursor is None else self._cursor.seq, written)
        records = self._ring_records(end)[max(self.next_seq - end, 0) :] if with_ring else []
        found = self._poll(max_bytes)
        if found is not None:
            return found
        if self.next_seq < written:
            why = self._cursor.damage if self._cursor is not None and self._cursor.damage else "cut short"
            return self._skip_to(written, f"missing at the end, by the writer's account ({why})")
        if not records:
            return None
        sizes = itertools.accumulate(map(len, records))
        most = sum(1 for size in sizes if size <= max_bytes)
        chunk = Chunk(self.next_seq, records[: max(most, 1)])
        self.next_seq = _end_seq(chunk)
        return chunk

    def _written(self) -> int:
        """How many records a writer that is gone has written, as far as that is known; 0 of a living one."""
        account = read_account(self.folder)
        if account is None:
            return self._written_by_run_end()
        end = account.end(self.stream)
        is_short = end > min(self.next_seq, 0 if self._cursor is None else self._cursor.seq)
        return end if is_short and (self._is_over or account.is_over()) else 0

    def _written_by_run_end(self) -> int:
        """The same by the last of the events, where the account is gone; 0 where that does not say it."""
        if self.stream != "metrics":
            return 0
        events = list(own_segments(self.folder, "events"))
        size = sum(_size(segment.path) for segment in events)
        if self._by_run_end[0] != size:
            self._by_run_end = size, _metrics_by_run_end(self.folder, events)
        return self._by_run_end[1]

    def _ring_records(self, end: int) -> list[bytes]:
        """Return what a ring gives behind record `end` of the stream."""
        # numpy, for the few readers that come upon a ring.
        if self.stream == "metrics":
            from .ring_rest import read_rest

            return read_rest(self.folder, metrics_end=end)
        loss = read_loss(self.folder)
        return [] if loss is None else [loss]

    def _poll(self, max_bytes: int) -> Chunk | Skipped | None:
        # Listed before reading: a segment that has a successor in this list will not grow any more.
        self._list()
        replaced = 0
        while replaced < _MOST_REPLACED:
            if self._told < len(self._passed_over):
                self._told += 1
                return Skipped(self.next_seq, self.next_seq, self._passed_over[self._told - 1])
            if self._cursor is None:
                self._cursor = self._open_cursor()
            if self._cursor is None:
                first = next(filter(self._is_own, self._segments), None)
                if first is None and self._told < len(self._passed_over):
                    continue
                return None if first is None else self._skip_gone(first.first_seq, NOT_THERE)
            try:
                found = self._cursor.read(max_bytes, self.next_seq)
            except FileNotFoundError:
                found = None
            except ReplacedError:
                self._cursor, replaced = None, replaced + 1
                continue
            if isinstance(found, Skipped) and self._is_beyond_end(found):
                self._passed_over.append(
                    f"{found.reason}; by the writer's account no record is missing there"
                )
                continue
            if found is not None:
                self.next_seq = found.end_seq if isinstance(found, Skipped) else _end_seq(found)
                return found
            following = self._following()
            if following is None and self._told < len(self._passed_over):
                continue
            if following is None:
                return None
            damage = self._cursor.damage
            self._cursor = Cursor(following)
            if following.first_seq > self.next_seq:
                return self._skip_gone(following.first_seq, damage or f"{NOT_THERE}, or cut short")
        return None

    def _skip_gone(self, end_seq: int, unknown: str) -> Skipped:
        """Skip records with the reason of the writer's events, where these tell of all of them."""
        reached = self.next_seq
        for data in _stored(self.folder, "events") if self.stream == "metrics" else ():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                gap = _gaps.decode(data)
                if gap.stream == "metrics" and gap.first_seq <= reached < gap.end_seq:
                    reached = gap.end_seq
                    unknown = f"deleted, for {gap.reason}" if reached >= end_seq else unknown
        return self._skip_to(end_seq, unknown)

    def is_at_end(self) -> bool:
        """Whether a `poll` would find nothing just now."""
        before = self.next_seq, copy.copy(self._cursor), self._told
        at_end = self.poll(max_bytes=1) is None
        if not at_end:
            self.next_seq, self._cursor, self._told = before
        return at_end

    def _is_beyond_end(self, hole: Skipped) -> bool:
        """Whether what is damaged there lies behind the last record: zeros that a power cut leaves, say."""
        account = read_account(self.folder) if self._to_end else None
        return account is not None and account.is_closed and hole.first_seq >= account.end(self.stream)

    def _list(self) -> None:
        """List the folder again if it has changed, and look at what is new there."""
        if not self._changes.look():
            return
        self._segments, odd = list_files(self.folder, self.stream)
        for segment in self._segments:
            if segment.path.name not in self._looked_at:
                self._looked_at.add(segment.path.name)
                self._is_own(segment)
        for name in odd:
            self._pass_over(name, "is the name of no segment")

    def _is_own(self, segment: Segment) -> bool:
        """Whether the header says what the name says, as far as it can be read."""
        claim, said = check_segment(segment.path, self.stream, segment.first_seq)
        if claim is Claim.FOREIGN:
            self._pass_over(segment.path.name, said)
            return False
        is_odd = claim is not Claim.OWN and self._is_out_of_place(segment)
        if is_odd and claim is Claim.DAMAGED:
            self._pass_over(segment.path.name, "has no header, and its writer has begun none there")
        return not is_odd

    def _is_out_of_place(self, segment: Segment) -> bool:
        """Whether one whose header cannot be read begins where none can: within another, or too far on."""
        cursor = self._cursor
        if cursor is not None and cursor.segment.first_seq < segment.first_seq < cursor.seq:
            return True
        return is_beyond_end(self.folder, self.stream, segment)

    def _pass_over(self, name: str, why: str) -> None:
        self._tell(f"{self.stream} of {self.folder.name}: {name} is passed over: it {why}")

    def _tell(self, text: str) -> None:
        """Have the next `poll` give a sentence, once."""
        if text not in self._passed_over:
            self._passed_over.append(text)

    def _open_cursor(self) -> Cursor | None:
        """Begin with the segment that holds `next_seq`; None when all are newer, or there is none."""
        holding = (one for one in reversed(self._segments) if one.first_seq <= self.next_seq)
        found = next(filter(self._is_own, holding), None)
        return None if found is None else Cursor(found)

    def _following(self) -> Segment | None:
        assert self._cursor is not None
        current = self._cursor.segment.first_seq
        following = (one for one in self._segments if one.first_seq > current)
        return next(filter(self._is_own, following), None)

    def _skip_to(self, end_seq: int, reason: str) -> Skipped:
        skipped = Skipped(self.next_seq, end_seq, f"{self.stream} of {self.folder.name}: {reason}")
        self.next_seq = end_seq
        return skipped


def read_stream(
    folder: Path,
    stream: StreamName,
    *,
    from_seq: int = 0,
    on_skip: Callable[[Skipped], None] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield (sequence number, encoded record) of what the journal holds now; holes go to `on_skip`.

    After the last record come those that only the ring of a killed trainer holds, or what tells of its loss;
    `on_skip` gets what is missing at the end, and files that were passed over.
    """
    follower = StreamFollower(folder, stream, from_seq=from_seq, to_end=True)
    while (found := follower.poll()) is not None:
        if isinstance(found, Chunk):
            yield from enumerate(found.records, start=found.first_seq)
        elif on_skip is not None:
            on_skip(found)


def read_loss(folder: Path, *, is_dead: bool = False) -> bytes | None:
    """Return the event that tells what the ring of a killed trainer has lost; None where that is told.

    Args:
        folder: the writer's.
        is_dead: it is known to be gone.
    """
    if not has_ring(folder):
        return None
    from .ring_loss import event_of_loss

    return event_of_loss(
        folder,
        metrics_end=lambda: written_to(folder, "metrics") or 0,
        metrics=lambda: _stored(folder, "metrics"),
        events=_stored(folder, "events"),
        is_dead=is_dead,
    )


def _stored(folder: Path, stream: StreamName) -> Iterator[bytes]:
    """Yield what the journal itself holds of a stream."""
    follower = StreamFollower(folder, stream)
    while (found := follower.poll()) is not None:
        if isinstance(found, Chunk):
            yield from found.records


def end_of_stream(folder: Path, stream: StreamName) -> StreamTail | None:
    """Find where a writer may continue its newest segment; None when there is no segment yet."""
    segments = list(own_segments(folder, stream))
    if not segments:
        return None
    cursor = Cursor(segments[-1])
    # Somebody may put another file there meanwhile.
    with contextlib.suppress(ReplacedError):
        while cursor.read(BATCH_BYTES, segments[-1].first_seq) is not None:
            pass
    return StreamTail(
        path=segments[-1].path, next_seq=cursor.seq, size=cursor.offset, damaged=cursor.damage is not None
    )


def written_to(folder: Path, stream: StreamName) -> int | None:
    """Return how many records a stream has had, by its segments and its account; None where neither says."""
    tail, account = end_of_stream(folder, stream), read_account(folder)
    if account is None or account.end(stream) == 0:
        return None if tail is None else tail.next_seq
    return max(account.end(stream), 0 if tail is None else tail.next_seq)


def missing_at_end(folder: Path, stream: StreamName) -> list[Skipped]:
    """Return what of a stream's newest segment, and behind it, is missing: not all of it is read."""
    first_seq = max((segment.first_seq for segment in own_segments(folder, stream)), default=0)
    follower = StreamFollower(folder, stream, from_seq=first_seq, to_end=True)
    holes = []
    while (found := follower.poll()) is not None:
        if isinstance(found, Skipped):
            holes.append(found)
    return holes


def has_ring(folder: Path) -> bool:
    """Whether a writer's folder has a ring, of a trainer that runs or that was killed."""
    try:
        return any(RING_NAME.fullmatch(name) for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def _end_seq(chunk: Chunk) -> int:
    return chunk.first_seq + len(chunk.records)


def _metrics_by_run_end(folder: Path, events: list[Segment]) -> int:
    """What the last record of the events says of the metrics; 0 where it is no end, or says nothing."""
    if not events:
        return 0
    last = b""
    follower = StreamFollower(folder, "events", from_seq=events[-1].first_seq)
    while (found := follower.poll()) is not None:
        if isinstance(found, Chunk):
            last = found.records[-1]
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _run_ends.decode(last).metrics_written or 0
    return 0


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
