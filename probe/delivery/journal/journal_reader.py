"""Reads a spool: lists its runs and writers, follows a stream while it is still being written.

Used by the helper, by the dashboard's ingest and by the offline commands. A reader never changes a file: a
torn tail is what a live writer's unfinished record looks like. What cannot be read becomes a `Skipped`.
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

from ...errors import JournalError
from ...settings.places import is_folder_name
from ...wire import BATCH_BYTES, MAX_RECORD_BYTES, RunStart, StreamName
from .folder_changes import FolderChanges
from .segment_files import Segment, list_segments
from .segments import PREFIX, split_records, unpack_header

_HEADER_READ_BYTES: Final = 8192


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive encoded records `first_seq, first_seq + 1, ...`."""

    first_seq: int
    records: list[bytes]


class Skipped(msgspec.Struct, frozen=True):
    """Records `[first_seq, end_seq)` that are not in the journal any more, or that are damaged."""

    first_seq: int
    end_seq: int
    reason: str


class StreamTail(msgspec.Struct, frozen=True):
    """Where the newest segment of a stream ends."""

    path: Path
    next_seq: int
    size: int
    """Bytes up to the end of the last intact record; 0 when not even the header is complete."""
    damaged: bool
    """Whether something unreadable follows that is no torn tail: the segment must not be continued."""


def list_runs(spool: Path) -> list[Path]:
    """Return the run folders of a spool, by name; an empty folder is an empty spool.

    Raises:
        JournalError: the path is not a folder, or holds other things than runs.
    """
    try:
        children = sorted(spool.iterdir())
    except FileNotFoundError:
        raise JournalError(f"{spool} does not exist; give the folder that holds the runs") from None
    except OSError as error:
        raise JournalError(f"{spool} is not a spool: {error.strerror or error}") from error
    runs = [child for child in children if is_folder_name(child.name) and _is_run(child)]
    if children and not runs and not any(child.name.startswith(".") for child in children):
        raise JournalError(f"{spool} is not a spool: it holds other things, but no run")
    return runs


def list_writers(run_folder: Path) -> list[Path]:
    """Return the writers' folders of a run (``<rank>-<incarnation>``, ``host-<name>``), by name."""
    with contextlib.suppress(OSError):
        return sorted(
            child
            for child in run_folder.iterdir()
            if "-" in child.name and is_folder_name(child.name) and child.is_dir()
        )
    return []


class WriterList:
    """The writers' folders of a run, for who asks again and again: one `stat` as long as none has come.

    Args:
        run_folder: `SPOOL/<run>`.
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._changes = FolderChanges(run_folder)
        self._writers: list[Path] = []

    def look(self) -> list[Path]:
        """Return the folders that there are now, by name."""
        if self._changes.look():
            self._writers = list_writers(self._run_folder)
        return self._writers


def read_run_json(run_folder: Path) -> RunStart | None:
    """Return what the run's first writer noted; None when there is nothing readable."""
    try:
        return msgspec.json.decode((run_folder / "run.json").read_bytes(), type=RunStart)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


class StreamFollower:
    """Reads one stream in order and goes on where it stopped; holds no file open between calls.

    A `poll` that finds nothing new costs two `stat` calls. Not thread-safe.

    Args:
        folder: the writer's.
        stream: which one.
        from_seq: number to begin with.
        with_ring: at the end of the metrics give what only the ring of a killed trainer holds, at the end
            of the events what it has lost, with the numbers that they get when somebody takes it; nothing
            is written.
    """

    def __init__(
        self, folder: Path, stream: StreamName, *, from_seq: int = 0, with_ring: bool = False
    ) -> None:
        self.folder = folder
        self._with_ring = with_ring and stream != "host"
        self.stream: StreamName = stream
        self.next_seq = from_seq
        """The number that the next `poll` begins with."""
        self._segments: list[Segment] = []
        self._changes = FolderChanges(folder)
        self._cursor: _Cursor | None = None

    def seek(self, seq: int) -> None:
        """Go to a number, backwards too; the next `poll` begins there."""
        self.next_seq = seq
        self._cursor = None

    def poll(self, max_bytes: int = BATCH_BYTES) -> Chunk | Skipped | None:
        """Return the next records (at most `max_bytes`, but at least one), a hole, or None for now."""
        found = self._poll(max_bytes)
        if found is None and self._with_ring:
            found = self._poll_ring(max_bytes)
        return found

    def _poll_ring(self, max_bytes: int) -> Chunk | Skipped | None:
        """Return what a ring holds beyond the journal; nobody may have taken it meanwhile."""
        if not has_ring(self.folder):
            return None
        # The journal's end; what has been read beyond that was a ring's.
        end = 0 if self._cursor is None else self._cursor.seq
        records = self._ring_records(end)[max(self.next_seq - end, 0) :]
        found = self._poll(max_bytes)
        if found is not None or not records:
            return found
        sizes = itertools.accumulate(map(len, records))
        most = sum(1 for size in sizes if size <= max_bytes)
        chunk = Chunk(self.next_seq, records[: max(most, 1)])
        self.next_seq = _end_seq(chunk)
        return chunk

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
        while True:
            if self._cursor is None:
                self._cursor = self._open_cursor()
            if self._cursor is None:
                return self._skip_to(self._segments[0].first_seq, "evicted") if self._segments else None
            try:
                found = self._cursor.read(max_bytes, self.next_seq)
            except FileNotFoundError:
                found = None
            if found is not None:
                self.next_seq = found.end_seq if isinstance(found, Skipped) else _end_seq(found)
                return found
            following = self._following()
            if following is None:
                return None
            damage = self._cursor.damage
            self._cursor = _Cursor(following)
            if following.first_seq > self.next_seq:
                return self._skip_to(following.first_seq, damage or "evicted or cut short")

    def is_at_end(self) -> bool:
        """Whether a `poll` would find nothing just now."""
        seq, cursor = self.next_seq, copy.copy(self._cursor)
        at_end = self.poll(max_bytes=1) is None
        if not at_end:
            self.next_seq, self._cursor = seq, cursor
        return at_end

    def _list(self) -> None:
        """List the folder again if it has changed."""
        if self._changes.look():
            self._segments = list_segments(self.folder, self.stream)

    def _open_cursor(self) -> _Cursor | None:
        """Begin with the segment that holds `next_seq`; None when all are newer, or there is none."""
        holding = [segment for segment in self._segments if segment.first_seq <= self.next_seq]
        return _Cursor(holding[-1]) if holding else None

    def _following(self) -> Segment | None:
        assert self._cursor is not None
        current = self._cursor.segment.first_seq
        return next((segment for segment in self._segments if segment.first_seq > current), None)

    def _skip_to(self, end_seq: int, reason: str) -> Skipped:
        skipped = Skipped(self.next_seq, end_seq, f"{self.stream} of {self.folder.name}: {reason}")
        self.next_seq = end_seq
        return skipped


class _Cursor:
    """A place within one segment."""

    __slots__ = ("damage", "offset", "segment", "seq")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.offset = 0
        """Bytes up to the next record; 0 before the header has been read."""
        self.seq = segment.first_seq
        """Number of the record at `offset`."""
        self.damage: str | None = None
        """Why nothing after `offset` can be read."""

    def read(self, max_bytes: int, from_seq: int) -> Chunk | Skipped | None:
        """Return what comes next, without records below `from_seq`.

        Raises:
            FileNotFoundError: the segment has been evicted.
        """
        if self.damage is not None or self.segment.path.stat().st_size <= self.offset:
            return None
        descriptor = os.open(self.segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self.offset == 0 and not self._read_header(descriptor):
                return self._damaged(from_seq, self.damage) if self.damage else None
            while True:
                first_seq = self.seq
                payloads, problem = self._read_records(descriptor, max_bytes)
                if payloads and self.seq > from_seq:
                    first = max(first_seq, from_seq)
                    return Chunk(first, payloads[first - first_seq :])
                if problem is not None:
                    skipped = self._step_over(descriptor, problem, from_seq)
                    if skipped is not None or self.damage:
                        return skipped
                elif not payloads:
                    return None
        finally:
            os.close(descriptor)

    def _read_header(self, descriptor: int) -> bool:
        try:
            header = unpack_header(os.pread(descriptor, _HEADER_READ_BYTES, 0))
        except JournalError as error:
            self.damage = f"{self.segment.path.name}: {error}"
            return False
        if header is None:
            return False
        self.offset = header[1]
        return True

    def _read_records(self, descriptor: int, max_bytes: int) -> tuple[list[bytes], str | None]:
        data = os.pread(descriptor, max(max_bytes, PREFIX.size), self.offset)
        payloads, used, problem = split_records(data)
        if not payloads and problem is None and len(data) >= PREFIX.size:
            needed = PREFIX.size + PREFIX.unpack_from(data)[0]
            if needed > len(data):
                payloads, used, problem = split_records(os.pread(descriptor, needed, self.offset))
        self.offset += used
        self.seq += len(payloads)
        return payloads, problem if not payloads else None

    def _step_over(self, descriptor: int, problem: str, from_seq: int) -> Skipped | None:
        """Pass one damaged record if its length still leads to an intact one, else give the segment up."""
        if self._is_boundary(descriptor, self.offset):
            return None  # it was being rewritten after a failed write
        where = f"{self.segment.path.name}, byte {self.offset}: {problem}"
        length = PREFIX.unpack(os.pread(descriptor, PREFIX.size, self.offset))[0]
        if 0 < length <= MAX_RECORD_BYTES and self._is_boundary(
            descriptor, self.offset + PREFIX.size + length
        ):
            self.offset += PREFIX.size + length
        else:
            self.damage = where
        return self._damaged(from_seq, where)

    def _is_boundary(self, descriptor: int, offset: int) -> bool:
        """Whether a record begins (or the file ends) at `offset`."""
        prefix = os.pread(descriptor, PREFIX.size, offset)
        if len(prefix) < PREFIX.size:
            return not prefix and os.fstat(descriptor).st_size == offset
        length = PREFIX.unpack(prefix)[0]
        if length > MAX_RECORD_BYTES:
            return False
        return bool(split_records(prefix + os.pread(descriptor, length, offset + PREFIX.size))[0])

    def _damaged(self, from_seq: int, where: str) -> Skipped | None:
        """Count one record as lost; what else was there shows when the next segment is known."""
        self.seq += 1
        return Skipped(self.seq - 1, self.seq, where) if self.seq > from_seq else None


def read_stream(
    folder: Path,
    stream: StreamName,
    *,
    from_seq: int = 0,
    on_skip: Callable[[Skipped], None] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield (sequence number, encoded record) of what the journal holds now; holes go to `on_skip`.

    After the last record come those that only the ring of a killed trainer holds, or what tells of its loss.
    """
    follower = StreamFollower(folder, stream, from_seq=from_seq, with_ring=True)
    while (found := follower.poll()) is not None:
        if isinstance(found, Chunk):
            yield from enumerate(found.records, start=found.first_seq)
        elif on_skip is not None:
            on_skip(found)


def read_loss(folder: Path) -> bytes | None:
    """Return the event that tells what the ring of a killed trainer has lost; None where that is told."""
    if not has_ring(folder):
        return None
    from .ring_loss import event_of_loss

    def metrics_end() -> int:
        end = end_of_stream(folder, "metrics")
        return 0 if end is None else end.next_seq

    return event_of_loss(
        folder,
        metrics_end=metrics_end,
        metrics=lambda: _stored(folder, "metrics"),
        events=_stored(folder, "events"),
    )


def _stored(folder: Path, stream: StreamName) -> Iterator[bytes]:
    """Yield what the journal itself holds of a stream."""
    follower = StreamFollower(folder, stream)
    while (found := follower.poll()) is not None:
        if isinstance(found, Chunk):
            yield from found.records


def end_of_stream(folder: Path, stream: StreamName) -> StreamTail | None:
    """Find where a writer may continue its newest segment; None when there is no segment yet."""
    segments = list_segments(folder, stream)
    if not segments:
        return None
    cursor = _Cursor(segments[-1])
    while cursor.read(BATCH_BYTES, segments[-1].first_seq) is not None:
        pass
    return StreamTail(
        path=segments[-1].path, next_seq=cursor.seq, size=cursor.offset, damaged=cursor.damage is not None
    )


def has_ring(folder: Path) -> bool:
    """Whether a writer's folder has a ring, of a trainer that runs or that was killed."""
    try:
        return any(name == "ring" or name.startswith("ring-") for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def _end_seq(chunk: Chunk) -> int:
    return chunk.first_seq + len(chunk.records)


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "run.json").is_file() or bool(list_writers(folder)))
