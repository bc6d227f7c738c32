"""The ring in memory, and the same bytes in a file: what a finished step has recorded outlives a kill -9.

Appended to on the training thread, here or by C code with the same layout (`ring_header`, `ring_format`),
both under Python's lock; read and taken on the recorder's thread alone. The memory is the file where that is
safe (`file_mapping`): a `pwrite` between two steps takes 24 to 32 us, a copy 0.4. Elsewhere `pwrite` it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ...guard import is_from_signal, let_pass, suppressed
from ...own_files import OwnFile
from . import ring_header
from .file_mapping import map_written_file
from .process_identity import NOBODY, own_identity
from .ring_format import (
    PAD,
    RECORD_HEAD,
    RingRecord,
    Template,
    Words,
    checksum,
    raw_bytes,
    read_raw,
    record_bytes,
    records_between,
)
from .ring_header import BUSY_AT, COUNTERS, HEADER_BYTES, MIN_CAPACITY, Counters, Mark

RAW_RECORDS: Final = 40
"""So many steps have room, where that is not too little or too much."""
LARGEST: Final = 8 * 1024**2
_EXPECTED_SCALARS: Final = 32
_HEAD, _TAIL, _NEXT_SEQ, _DESCRIPTOR, _DROPPED, _ERRORS, _WANTED = range(3, 10)
_BUSY: Final = BUSY_AT // 8
_PIECE: Final = 1024**2


def capacity_for(parameters: int) -> int:
    """Return the bytes of the data area for a model with so many parameters."""
    wanted = RAW_RECORDS * raw_bytes(parameters, _EXPECTED_SCALARS)
    return min(max((wanted + 7) // 8 * 8, MIN_CAPACITY), LARGEST)


class Ring:
    """One ring; `address` is what C code appends at.

    Args:
        path: of the file; it is made anew. None, or where it cannot be made: the ring is in memory alone.
        capacity: bytes of the data area, a multiple of 8.

    Attributes:
        problem: why there is no file, or why it is not written any more; None while all is well.
        appended_s: monotonic seconds of the newest append by Python.
    """

    def __init__(self, path: Path | None, capacity: int) -> None:
        self._use(np.zeros(HEADER_BYTES + capacity, dtype=np.uint8))
        self.capacity = capacity
        self.problem: str | None = None
        self.appended_s = 0.0
        self._path = path
        self._file: OwnFile | None = None
        """Where the memory is not the file itself."""
        self._lock = threading.RLock()
        self._is_appending = self._is_held = False
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._templates: dict[int, Template] = {}
        self._template_first_seq: dict[int, int] = {}
        self._mark = Mark(0, 0, 0, -1, 0, 0, 0)
        counters = Counters(ring_header.MAGIC, ring_header.VERSION, capacity, 0, 0, 0, -1, 0, 0, 0)
        COUNTERS.pack_into(self._view, 0, *counters)
        ring_header.OWNER.pack_into(self._view, ring_header.OWNER_AT, *own_identity())
        self._put_mark(self._mark)
        if path is not None:
            ring_header.IDENTITY.pack_into(self._view, ring_header.IDENTITY_AT, ring_header.identity_of(path))
            self._make_file(path)

    def _use(self, memory: npt.NDArray[np.uint8]) -> None:
        """Be these bytes. From the end of the constructor on C code holds their address: they never move."""
        self._memory = memory
        self._view = memory.data
        self._area = self._view[HEADER_BYTES:]
        # Not an array: its numbers are objects of numpy's, ten times as dear to compare.
        self._numbers = self._view[:HEADER_BYTES].cast("q")

    @property
    def address(self) -> int:
        """Where the first byte of the header lies in memory, for C code; valid as long as this object."""
        return int(self._memory.ctypes.data)

    @property
    def counters(self) -> Counters:
        """The header's numbers as they are now."""
        return Counters(*COUNTERS.unpack_from(self._view, 0))

    @property
    def is_empty(self) -> bool:
        """Whether everything has been taken."""
        return self._numbers[_HEAD] == self._numbers[_TAIL] and not self._waiting

    @property
    def is_wanted(self) -> bool:
        """Whether an appender has found the ring half full."""
        return bool(self._numbers[_WANTED])

    @property
    def dropped(self) -> int:
        """Records of C code that found no room: such a step goes the slow way, and is not lost."""
        return self._numbers[_DROPPED]

    @property
    def is_mapped(self) -> bool:
        """Whether the memory is the file."""
        return self._path is not None and self.problem is None and self._file is None

    @property
    def waiting(self) -> int:
        """Records that have not been taken."""
        return self._numbers[_NEXT_SEQ] - self._mark_seq()

    def append(self, kind: int, payload: bytes) -> bool:
        """Append a record; False, and nothing is changed, where it has no room.

        A signal's handler or the garbage collector may append in the middle of it: that record follows.
        """
        with self._lock:
            if self._is_appending:
                self._waiting.append((kind, payload))
                return True
            self._is_appending, self._numbers[_BUSY] = True, 1
            try:
                is_appended = self._append(kind, payload)
                while self._waiting:
                    self._append(*self._waiting.popleft())
            finally:
                self._is_appending, self._numbers[_BUSY] = False, self._is_held
        return is_appended

    def hold(self, is_held: bool) -> None:
        """Have C code append nothing for now: older records wait elsewhere."""
        with self._lock:
            self._is_held = is_held
            self._numbers[_BUSY] = self._is_appending or is_held

    def _append(self, kind: int, payload: bytes) -> bool:
        head, size = self._numbers[_HEAD], record_bytes(len(payload))
        left = self.capacity - head % self.capacity
        skipped = left if size > left else 0
        used = head - self._numbers[_TAIL]
        if used + skipped + size > self.capacity:
            return False
        if skipped >= RECORD_HEAD.size:
            self._put(head, PAD, bytes(skipped - RECORD_HEAD.size))
        self._put(head + skipped, kind, payload)
        self._numbers[_HEAD] = head + skipped + size
        self._numbers[_NEXT_SEQ] += 1
        self.appended_s = time.monotonic()
        if 2 * (used + skipped + size) >= self.capacity:
            self._numbers[_WANTED] = 1
        self._write(0, COUNTERS.size)
        return True

    def _put(self, head: int, kind: int, payload: bytes) -> None:
        start, size = HEADER_BYTES + head % self.capacity, record_bytes(len(payload))
        at = start + RECORD_HEAD.size
        self._view[at : at + len(payload)] = payload
        self._view[at + len(payload) : start + size] = bytes(start + size - at - len(payload))
        RECORD_HEAD.pack_into(self._view, start, 0, len(payload), kind, self._numbers[_NEXT_SEQ])
        words = self._memory[start + 8 : start + size].view(np.uint64)
        self._numbers_at(start)[0] = checksum(words)
        self._write(start, start + size)

    def _numbers_at(self, start: int) -> Words:
        return self._memory[start : start + 8].view(np.uint64)

    # -- templates

    def write_template(self, template: Template) -> int | None:
        """Write what the raw records to come have in common; return its id, to stand in each of them.

        None where it is too long, or where records of the one before last are still in the ring: the step
        has to be appended in another way, and the next one may ask again.
        """
        newest = max(self._templates, default=0)
        if newest and self._templates[newest] == template:
            return newest
        data = msgspec.msgpack.encode(template)
        prefix = ring_header.TEMPLATE_PREFIX
        if len(data) > ring_header.TEMPLATE_BYTES - prefix.size:
            return None
        number = newest + 1
        # Records of the template in this slot are older than the first of its successor.
        limit = self._template_first_seq.get(number - 1, 0) if number > 2 else 0
        if self._mark_seq() < limit:
            return None
        at = ring_header.TEMPLATE_AT[number % 2]
        prefix.pack_into(self._view, at, len(data), number)
        self._view[at + prefix.size : at + prefix.size + len(data)] = data
        self._templates[number] = template
        self._templates.pop(number - 2, None)
        self._template_first_seq[number] = self._numbers[_NEXT_SEQ]
        self._template_first_seq.pop(number - 2, None)
        self._write(at, at + prefix.size + len(data))
        return number

    def _mark_seq(self) -> int:
        """Ring sequence of the oldest record that is still in the ring."""
        return self._mark.end_seq if self._numbers[_TAIL] >= self._mark.end else self._mark.seq

    @property
    def templates(self) -> dict[int, Template]:
        """The templates that records in the ring may name, by id."""
        return dict(self._templates)

    # -- on the recorder's thread

    def records(self, start: int | None = None) -> Iterator[RingRecord]:
        """Return what is in the ring now, from total byte `start` on, or from the tail; payloads are views.

        Ends at the first that cannot be read. The checksums are for who reads the file after a kill: here a
        record is whole before the head goes on, and checking sixteen costs 0.1 ms where caches are empty.
        """
        head, tail = self._numbers[_HEAD], self._numbers[_TAIL]
        return records_between(self._area, tail if start is None else max(start, tail), head)

    def raw_template(self, payload: memoryview) -> Template | None:
        """Return the template that a raw record names."""
        return self._templates.get(read_raw(payload).template)

    def take(self, *, end: int, end_seq: int, records: int, next_seq: int, store: Callable[[], None]) -> None:
        """Move records to the metrics stream: note it in the file, have `store` do it, free their room.

        Args:
            end: total bytes up to the end of the last of them.
            end_seq: ring sequence after it.
            records: metrics records that they become.
            next_seq: number of the first of these.
            store: writes them; what it raises leaves the records in the ring.
        """
        tail, seq = self._numbers[_TAIL], self._mark_seq()
        self._mark = Mark(self._mark.generation + 1, tail, seq, next_seq, end, end_seq, records)
        self._put_mark(self._mark)
        store()
        self._numbers[_TAIL] = end
        self._numbers[_WANTED] = 0
        # C code writes none. Copied first: it may append meanwhile.
        self._write_bytes(bytes(self._view[: COUNTERS.size]), 0)

    def skip_damaged(self, metrics_end: int) -> int:
        """Give up what cannot be read, where nothing can; returns how many records are lost.

        Args:
            metrics_end: number of the next record of the metrics stream.
        """
        head, next_seq = self._numbers[_HEAD], self._numbers[_NEXT_SEQ]
        if next(self.records(), None) is not None or head == self._numbers[_TAIL]:
            return 0
        lost = next_seq - self._mark_seq()
        self.take(end=head, end_seq=next_seq, records=0, next_seq=metrics_end, store=lambda: None)
        return lost

    def _put_mark(self, mark: Mark) -> None:
        at = ring_header.MARK_AT[mark.generation % 2]
        data = ring_header.pack_mark(mark)
        self._view[at : at + len(data)] = data
        self._write(at, at + len(data))

    # -- the file

    def _make_file(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._file = OwnFile(path, flags)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.descriptor(), 0, len(self._memory))
            # Every page is written now: later there may be no room for it.
            self._fill(self._file.descriptor())
            mapped = map_written_file(self._file.descriptor(), len(self._memory))
        except OSError as error:
            let_pass(error)
            self._give_up(f"{path} cannot be written: {error.strerror or error}")
            return
        if mapped is None:
            self._show_file(self._file)
            self._write(0, HEADER_BYTES)
            return
        self._use(mapped)
        self._file.close()
        self._file = None

    def _fill(self, descriptor: int) -> None:
        """Write all of the memory to the file."""
        for start in range(0, len(self._memory), _PIECE):
            piece = self._view[start : start + _PIECE]
            if os.pwrite(descriptor, piece, start) != len(piece):
                raise OSError(f"{self._path} was written in part")

    def _show_file(self, file: OwnFile) -> None:
        """Have C code copy its records to the file."""
        ring_header.FILE.pack_into(self._view, ring_header.FILE_AT, *file.identity)
        self._numbers[_DESCRIPTOR] = file.descriptor()

    def _write(self, start: int, end: int) -> None:
        """Copy bytes of the memory to the same place in the file."""
        self._write_bytes(self._view[start:end], start)

    def _write_bytes(self, data: bytes | memoryview, start: int) -> None:
        if self._file is None:
            return
        if self._file.is_closed_by_script:
            self._numbers[_ERRORS] += 1  # as C code does; `check` opens it again
            return
        try:
            is_whole = os.pwrite(self._file.descriptor(), data, start) == len(data)
        except OSError as error:
            if is_from_signal(error):
                self._numbers[_ERRORS] += 1
                raise
            self._numbers[_ERRORS] += 1
            self._give_up(f"{self._path} cannot be written: {error.strerror or error}")
            return
        if not is_whole:
            self._give_up(f"{self._path} was written in part")

    def check(self) -> None:
        """Open the file again where the script has closed it; give it up where it cannot be written."""
        if self._file is None:
            return
        if self._file.is_closed_by_script:
            try:
                self._numbers[_ERRORS] = 0
                self._show_file(self._file)
                # What comes meanwhile is copied there too, and this copies what is in memory then.
                self._fill(self._file.descriptor())
            except OSError as error:
                let_pass(error)
                self._give_up(f"{self._path} cannot be written: {error.strerror or error}")
        elif self._numbers[_ERRORS]:
            self._give_up(f"{self._path} cannot be written")

    def lose_file(self, why: str) -> None:
        """Go on in memory alone: somebody has removed the file."""
        if self.problem is None:
            self._give_up(why)

    def _give_up(self, problem: str) -> None:
        """Go on in memory alone; a file that is not kept up would be believed after a kill."""
        self.problem = problem
        self.close()

    def leave(self) -> bool:
        """Leave the file to who reads it, as that of a process that is gone; False where there is none.

        Nothing is to be appended any more.
        """
        if self._path is None or self.problem is not None or self.is_empty:
            return False
        with self._lock:
            self.check()
            ring_header.OWNER.pack_into(self._view, ring_header.OWNER_AT, *NOBODY)
            self._write(0, HEADER_BYTES)
        self._close_file()
        self._path = None
        return self.problem is None

    def close(self) -> None:
        """Close and remove the file; the memory stays usable. Idempotent."""
        self._close_file()
        if self._path is not None:
            with suppressed(OSError):
                self._path.unlink()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        self._numbers[_DESCRIPTOR] = -1
        if file is not None:
            with suppressed(OSError):
                file.close()
