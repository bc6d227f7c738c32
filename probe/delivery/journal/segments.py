"""The binary layout of a journal's segment files, and the names of the folders they lie in.

A segment is a header (`MAGIC`, u32 length, u32 crc32, msgpack of `SegmentHeader`) and then records, each
u32 length, u32 crc32 of the payload, payload; integers are little-endian. A record's sequence number is the
segment's first number plus its index. Pure: bytes in, values out; used by the journal's writer and reader.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Annotated, Final

import msgspec

from ...errors import JournalError
from ...wire import MAX_RECORD_BYTES, RunId, StreamName, WriterId

MAGIC: Final = b"NANOSEG1"
VERSION: Final = 2
PREFIX: Final = struct.Struct("<II")
"""Length and crc32 in front of every payload, the header's included."""
_MAX_HEADER_BYTES: Final = 4096
HEADER_READ_BYTES: Final = 8192
"""What is read of a file to see its header."""
MAX_SEQ: Final = 2**62
"""No record has a larger number."""
_NAME: Final = re.compile(r"(events|metrics|host)-([0-9]{20})\.seg")
ODD_NAME: Final = re.compile(r"(events|metrics|host)-[0-9]{1,40}\.seg(\.aside(-[0-9]+)?)?")
"""What is named like a segment, be it one or not."""


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Says whose records follow, so that a segment still explains itself outside its folder."""

    version: int
    run: RunId
    writer: WriterId
    stream: StreamName
    first_seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]


def segment_name(stream: StreamName, first_seq: int) -> str:
    """Return the file name; zero-padded, so that names sort by number."""
    return f"{stream}-{first_seq:020d}.seg"


def parse_segment_name(name: str) -> tuple[str, int] | None:
    """Return (stream, first sequence number), or None for a file that is no segment."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2])) if match and int(match[2]) <= MAX_SEQ else None


def pack_header(header: SegmentHeader) -> bytes:
    """Return the bytes that begin a segment file."""
    payload = msgspec.msgpack.encode(header)
    return MAGIC + PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def unpack_header(data: bytes) -> tuple[SegmentHeader, int] | None:
    """Return the header and its length in bytes; None when `data` ends before the header does.

    Raises:
        JournalError: these bytes do not begin a segment that this version can read.
    """
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise JournalError("it does not begin like a segment")
    start = len(MAGIC) + PREFIX.size
    if len(data) < start:
        return None
    length, checksum = PREFIX.unpack_from(data, len(MAGIC))
    if length > _MAX_HEADER_BYTES:
        raise JournalError("its header is damaged")
    payload = data[start : start + length]
    if len(payload) < length:
        return None
    if zlib.crc32(payload) != checksum:
        raise JournalError("its header is damaged")
    try:
        header = msgspec.msgpack.decode(payload, type=SegmentHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(f"its header does not decode: {error}") from error
    if header.version > VERSION:
        raise JournalError(f"it has format version {header.version}; this version reads up to {VERSION}")
    return header, start + length


def record_prefix(payload: bytes) -> bytes:
    """Return what stands in front of a record's payload.

    Raises:
        JournalError: the payload is larger than a record may be.
    """
    if not 0 < len(payload) <= MAX_RECORD_BYTES:
        raise JournalError(f"record of {len(payload)} bytes; 1 to {MAX_RECORD_BYTES} are allowed")
    return PREFIX.pack(len(payload), zlib.crc32(payload))


def split_records(data: bytes) -> tuple[list[bytes], int, str | None]:
    """Split bytes that begin at a record into payloads.

    Returns:
        The intact payloads, the number of bytes they took, and why splitting stopped: None when `data` ended
        (perhaps within a record that is still being written), else what is wrong with the record there.
    """
    payloads: list[bytes] = []
    offset = 0
    while offset + PREFIX.size <= len(data):
        length, checksum = PREFIX.unpack_from(data, offset)
        if not 0 < length <= MAX_RECORD_BYTES:  # zeros are what a power cut leaves
            return payloads, offset, f"a record claims {length} bytes"
        end = offset + PREFIX.size + length
        if end > len(data):
            break
        payload = data[offset + PREFIX.size : end]
        if zlib.crc32(payload) != checksum:
            return payloads, offset, "a record's checksum is wrong"
        payloads.append(payload)
        offset = end
    return payloads, offset, None
