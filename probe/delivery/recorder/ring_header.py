"""The first 4,096 bytes of a ring: counters, who writes it, what of it is in the journal, templates.

Pure, and light: the helper and the readers look at it for every writer. All numbers are little-endian.

- bytes 0..79: ten int64, see `Counters`; the appender writes them to the file after each record.
- bytes 80..103: process id, start of that process in clock ticks, identity of the machine's boot (u64).
- bytes 104..111: int64, not 0 while Python appends: C code then appends nothing.
- bytes 112..119: u64, whose ring it is: `identity_of` its path; 0 of an older probe.
- bytes 128..191 and 192..255: two slots of a `Mark`, written in turn by who takes records.
- bytes 256..271: device and inode of the file, u64, where C code copies records to it: a script may close it.
- bytes 1024..4095: two slots of a template, 1,536 bytes each: u32 length, u32 id, msgpack.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

MAGIC: Final = 0x474E49524E414E53
VERSION: Final = 1
HEADER_BYTES: Final = 4096
COUNTERS: Final = struct.Struct("<10q")
OWNER: Final = struct.Struct("<qqQ")
OWNER_AT: Final = 80
BUSY_AT: Final = 104
IDENTITY: Final = struct.Struct("<Q")
IDENTITY_AT: Final = 112
MARK_AT: Final = (128, 192)
FILE: Final = struct.Struct("<QQ")
FILE_AT: Final = 256
TEMPLATE_AT: Final = (1024, 2560)
TEMPLATE_BYTES: Final = 1536
TEMPLATE_PREFIX: Final = struct.Struct("<II")
MIN_CAPACITY: Final = 256 * 1024
MAX_CAPACITY: Final = 64 * 1024**2
"""A ring that claims more is none; `ring.capacity_for` asks for much less."""
_MARK: Final = struct.Struct("<7q")
_CHECK: Final = struct.Struct("<Q")


class Counters(NamedTuple):
    """The ten numbers that begin a ring."""

    magic: int
    version: int
    capacity: int
    """Bytes of the data area, a multiple of 8."""
    head: int
    """Bytes appended since the start; the next record's position is `head % capacity`."""
    tail: int
    """Bytes taken since the start."""
    next_seq: int
    """Ring sequence of the next record."""
    descriptor: int
    """Of the file that C code copies records to; -1 where the memory is the file, or there is none."""
    dropped: int
    """Records of C code that found no room: such a step goes the slow way."""
    errors: int
    """Writes to the file that failed."""
    wanted: int
    """1 once the ring is half full: the recorder's thread is to be woken."""


class Owner(NamedTuple):
    """Who appends: a process, known by its start, of one boot of one machine."""

    pid: int
    started_ticks: int
    boot: int


class Mark(NamedTuple):
    """What is being moved to the metrics stream, written before that: a kill meanwhile leaves no doubt.

    What lies in `[tail, end)` becomes the metrics records from `next_seq` on, `records` of them. Where the
    stream ends at `next_seq + records` or later, all of them are there; where it ends before, the first are.
    """

    generation: int
    tail: int
    seq: int
    """Ring sequence of the record at `tail`."""
    next_seq: int
    """Of the metrics stream; -1 while nothing has been taken."""
    end: int
    end_seq: int
    """Ring sequence of the record at `end`."""
    records: int


def pack_mark(mark: Mark) -> bytes:
    """Return the 64 bytes of a slot."""
    data = _MARK.pack(*mark)
    return data + _CHECK.pack(zlib.crc32(data) + 1)


def newest_mark(header: bytes) -> Mark | None:
    """Return the mark that was written last; None where no slot holds an intact one."""
    found = [mark for at in MARK_AT if (mark := _unpack_mark(header[at : at + 64])) is not None]
    return max(found, key=lambda mark: mark.generation, default=None)


def _unpack_mark(data: bytes) -> Mark | None:
    mark, (check,) = Mark(*_MARK.unpack_from(data)), _CHECK.unpack_from(data, _MARK.size)
    if check != zlib.crc32(data[: _MARK.size]) + 1:
        return None
    is_sound = 0 <= mark.tail <= mark.end and 0 <= mark.seq <= mark.end_seq and mark.records >= 0
    return mark if is_sound and mark.next_seq >= -1 else None


def read_counters(header: bytes) -> Counters | None:
    """Return the counters; None where these bytes begin no ring of this version."""
    if len(header) < HEADER_BYTES:
        return None
    counters = Counters(*COUNTERS.unpack_from(header))
    is_ring = counters.magic == MAGIC and counters.version == VERSION
    has_size = 0 < counters.capacity <= MAX_CAPACITY and counters.capacity % 8 == 0
    is_sound = 0 <= counters.tail <= counters.head and counters.head % 8 == 0 and counters.tail % 8 == 0
    fits = counters.head - counters.tail <= counters.capacity
    return counters if is_ring and has_size and is_sound and fits else None


def read_owner(header: bytes) -> Owner:
    """Return who appends."""
    return Owner(*OWNER.unpack_from(header, OWNER_AT))


def identity_of(path: Path) -> int:
    """Return the number that stands for the run, the writer and the name of a ring's file; never 0."""
    folder = path.parent.resolve()
    name = f"{folder.parent.name}/{folder.name}/{path.name}"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def ring_problem(path: Path, data: bytes) -> str | None:
    """Say why these bytes are not the ring that belongs at a path; None where they are, or are newer than us.

    Args:
        path: where they lie.
        data: the file, or its first `HEADER_BYTES` alone.
    """
    if len(data) < HEADER_BYTES:
        return f"it is cut off after {len(data):,} bytes"
    first = Counters(*COUNTERS.unpack_from(data))
    if first.magic == MAGIC and first.version != VERSION:
        return None
    if read_counters(data) is None or newest_mark(data) is None:
        return "it does not begin like a ring, or is damaged"
    (identity,) = IDENTITY.unpack_from(data, IDENTITY_AT)
    if identity not in (0, identity_of(path)):
        return "it is another writer's"
    return None


def template_payloads(header: bytes) -> dict[int, bytes]:
    """Return the msgpack of the templates by their ids; slots that hold none are left out."""
    found: dict[int, bytes] = {}
    for at in TEMPLATE_AT:
        length, number = TEMPLATE_PREFIX.unpack_from(header, at)
        start = at + TEMPLATE_PREFIX.size
        if number and 0 < length <= TEMPLATE_BYTES - TEMPLATE_PREFIX.size:
            found[number] = header[start : start + length]
    return found
