"""How many records a writer has written to each of its streams: the file `account` in its folder.

It tells a reader where a stream ends, which the segments cannot: the last one may be cut, damaged or gone.
The writer brings it up to date after each append, on the thread that appends, so it never says more than was
written; after a kill it says at most one append less. All numbers are little-endian:

- bytes 0..127: two slots of 64 bytes, written in turn: magic, generation, process id, start of that process
  in clock ticks, identity of the machine's boot, 1 once the writer has closed its files; crc32.
- bytes 128..319: two slots of 32 bytes for each of `STREAMS`, written in turn: generation, records; crc32.

Each crc32 begins with that of ``<run>/<writer>`` and of the slot's kind: an account that was copied from
elsewhere is none.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from ...guard import is_from_signal, let_pass, suppressed
from ...own_files import OwnFile
from ...wire import StreamName
from ...wire.ordinary_files import ordinary_file
from ..recorder.process_identity import is_alive, own_identity
from ..recorder.ring_header import Owner

NAME: Final = "account"
FILE_BYTES: Final = 320
STREAMS: Final[tuple[StreamName, ...]] = ("events", "metrics", "host")
_MAGIC: Final = 0x3143_4341_4F4E_414E
_HEAD: Final = struct.Struct("<QQqqQQ")
_HEAD_BYTES: Final = 64
_END: Final = struct.Struct("<QQ")
_END_BYTES: Final = 32
_ENDS_AT: Final = 2 * _HEAD_BYTES
_CHECK: Final = struct.Struct("<I")
_MAX_RECORDS: Final = 2**62


class Account(NamedTuple):
    """What a writer's account says."""

    events: int
    """Records that were written to the stream, evicted ones included."""
    metrics: int
    host: int
    owner: Owner
    """The process that writes, or that wrote last."""
    is_closed: bool
    """Whether the writer has closed its files in an orderly way."""
    written_s: float
    """When the file was last written; UNIX seconds."""

    def end(self, stream: StreamName) -> int:
        """Return the number after the stream's last record."""
        return int(getattr(self, stream))

    def is_over(self) -> bool:
        """Whether nobody writes any more, as far as this machine sees."""
        return self.is_closed or not is_alive(self.owner, silent_s=time.time() - self.written_s)


def read_account(folder: Path) -> Account | None:
    """Read the account of a writer's folder; None where there is none, or none that can be believed.

    Args:
        folder: `SPOOL/<run>/<writer>`.
    """
    try:
        with ordinary_file(folder / NAME) as descriptor:
            data, written_s = os.pread(descriptor, FILE_BYTES, 0), os.fstat(descriptor).st_mtime
    except OSError as error:
        let_pass(error)
        return None
    if len(data) < FILE_BYTES:
        return None
    seed = _seed(folder)
    heads = [found for slot in (0, 1) if (found := _unpack(_HEAD, data, slot * _HEAD_BYTES, seed))]
    head = max((found for found in heads if found[0] == _MAGIC), key=lambda found: found[1], default=None)
    ends = [_newest_end(data, index, seed) for index in range(len(STREAMS))]
    if head is None or any(end is None for end in ends):
        return None
    events, metrics, host = (end[1] for end in ends if end is not None)
    return Account(events, metrics, host, Owner(*head[2:5]), bool(head[5]), written_s)


class AccountWriter:
    """Keeps the account of a folder; one process at a time. It raises nothing: a journal works without one.

    `note` may be called on any thread, the rest where nobody appends.

    Args:
        folder: the writer's; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._seed = _seed(folder)
        self._checks = [zlib.crc32(b"%d" % index, self._seed) for index in range(len(STREAMS))]
        self._generations = [0, 0, 0]
        self._noted = [0, 0, 0]
        self._lock = threading.RLock()
        self._generation = 0
        self._file: OwnFile | None = None
        is_sound = read_account(folder) is not None
        with suppressed(OSError):
            self._file = OwnFile(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
            self._begin(self._file.descriptor(), is_sound)

    def _begin(self, descriptor: int, is_sound: bool) -> None:
        """Write all of it in one go: the room is taken now, and later only overwritten."""
        if is_sound:
            old = os.pread(descriptor, FILE_BYTES, 0)
            self._generation = _generation(_HEAD, old, (0, _HEAD_BYTES), 1)
            for index in range(len(STREAMS)):
                self._generations[index] = _generation(_END, old, _slots(index), 0)
            self._write_head(descriptor, is_closed=False)
            return
        data = bytearray(FILE_BYTES)
        data[:_HEAD_BYTES] = self._head(is_closed=False)
        for index in range(len(STREAMS)):
            at = _slots(index)[0]
            data[at : at + _END.size + _CHECK.size] = self._end(index, 0)
        os.pwrite(descriptor, data, 0)

    def note(self, stream: StreamName, records: int) -> None:
        """Say that a stream has so many records; they are in its segment."""
        file = self._file
        if file is None:
            return
        index = STREAMS.index(stream)
        with self._lock:
            if records < self._noted[index]:  # another thread was quicker
                return
            self._noted[index] = records
            self._generations[index] += 1
            try:
                os.pwrite(
                    file.descriptor(), self._end(index, records), _slots(index)[self._generations[index] & 1]
                )
            except OSError as error:
                if is_from_signal(error):
                    raise
                # It says less than was written, until the next append.

    def close(self) -> None:
        """Say that nothing will follow. Idempotent."""
        file, self._file = self._file, None
        if file is None:
            return
        with suppressed(OSError):
            self._write_head(file.descriptor(), is_closed=True)
        file.close()

    def _write_head(self, descriptor: int, *, is_closed: bool) -> None:
        self._generation += 1
        os.pwrite(descriptor, self._head(is_closed=is_closed), (self._generation & 1) * _HEAD_BYTES)

    def _head(self, *, is_closed: bool) -> bytes:
        payload = _HEAD.pack(_MAGIC, self._generation, *own_identity(), is_closed)
        return (payload + _CHECK.pack(zlib.crc32(payload, self._seed))).ljust(_HEAD_BYTES, b"\0")

    def _end(self, index: int, records: int) -> bytes:
        payload = _END.pack(self._generations[index], records)
        return payload + _CHECK.pack(zlib.crc32(payload, self._checks[index]))


def _seed(folder: Path) -> int:
    return zlib.crc32(f"{folder.parent.name}/{folder.name}".encode())


def _slots(index: int) -> tuple[int, int]:
    at = _ENDS_AT + index * 2 * _END_BYTES
    return at, at + _END_BYTES


def _generation(form: struct.Struct, data: bytes, slots: tuple[int, int], field: int) -> int:
    """The larger of two slots' generations, believed or not: what is written next is newer than both."""
    found = [form.unpack_from(data, at)[field] for at in slots]
    return max([number for number in found if number < _MAX_RECORDS], default=0)


def _newest_end(data: bytes, index: int, seed: int) -> tuple[int, ...] | None:
    check = zlib.crc32(b"%d" % index, seed)
    found = [end for at in _slots(index) if (end := _unpack(_END, data, at, check)) is not None]
    sound = [end for end in found if end[0] < _MAX_RECORDS and end[1] <= _MAX_RECORDS]
    return max(sound, key=lambda end: end[0], default=None)


def _unpack(form: struct.Struct, data: bytes, at: int, check: int) -> tuple[int, ...] | None:
    """A slot's numbers; None where its checksum is another."""
    payload = data[at : at + form.size]
    if _CHECK.unpack_from(data, at + form.size)[0] != zlib.crc32(payload, check):
        return None
    return form.unpack(payload)
