"""Reads one segment from its header on, and goes on where it stopped. Used by `journal_reader.py`."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

import msgspec

from ...errors import JournalError
from ...wire import MAX_RECORD_BYTES
from ...wire.ordinary_files import NotOrdinaryError, ordinary_file
from .segment_files import Segment
from .segments import HEADER_READ_BYTES, PREFIX, SegmentHeader, split_records, unpack_header

_UNREADABLE: Final = (errno.EACCES, errno.EIO)


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive encoded records `first_seq, first_seq + 1, ...`."""

    first_seq: int
    records: list[bytes]


class Skipped(msgspec.Struct, frozen=True):
    """Records `[first_seq, end_seq)` that are not in the journal any more, or that are damaged.

    Where both numbers are the same, no record is missing: `reason` tells of a file that was passed over.
    """

    first_seq: int
    end_seq: int
    reason: str


class ReplacedError(Exception):
    """Another segment lies under this name than the one that was read before, or than the name says."""


class Cursor:
    """A place within one segment."""

    __slots__ = ("_header", "damage", "offset", "segment", "seq")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._header: tuple[SegmentHeader, bytes] | None = None
        """What it said when it was first read."""
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
            ReplacedError: this is another segment now.
        """
        if self.damage is not None or self.segment.path.lstat().st_size <= self.offset:
            return None
        try:
            return self._read(max_bytes, from_seq)
        except OSError as error:
            if error.errno not in _UNREADABLE and not isinstance(error, NotOrdinaryError):
                raise
            self.damage = f"{self.segment.path.name}: {error.strerror}"
            return self._damaged(from_seq, self.damage)

    def _read(self, max_bytes: int, from_seq: int) -> Chunk | Skipped | None:
        with ordinary_file(self.segment.path) as descriptor:
            self._require_same(descriptor)
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

    def _read_header(self, descriptor: int) -> bool:
        try:
            data = os.pread(descriptor, HEADER_READ_BYTES, 0)
            header = unpack_header(data)
        except JournalError as error:
            self.damage = f"{self.segment.path.name}: {error}"
            return False
        if header is None:
            return False
        if header[0].first_seq != self.segment.first_seq:
            raise ReplacedError
        self.offset = header[1]
        self._header = header[0], data[: header[1]]
        return True

    def _require_same(self, descriptor: int) -> None:
        """Raise where the file has another header than before; one that is damaged now is the same."""
        if self._header is None:
            return
        header, known = self._header
        if os.pread(descriptor, len(known), 0) != known:
            with contextlib.suppress(JournalError):
                found = unpack_header(os.pread(descriptor, HEADER_READ_BYTES, 0))
                if found is not None and found[0] != header:
                    raise ReplacedError

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
