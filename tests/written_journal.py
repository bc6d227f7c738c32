"""Reads a journal by the description of its format alone: what was written, whatever the product says.

A segment: ``NANOSEG1``, u32 length, u32 crc32, msgpack of {version, run, writer, stream, first_seq}; then
records, each u32 length, u32 crc32, payload. All numbers little-endian.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec

Stream = tuple[str, str]
"""Writer's folder and stream."""
STREAMS = ("events", "metrics", "host")
PREFIX = struct.Struct("<II")
MAGIC = b"NANOSEG1"


def header_of(data: bytes) -> tuple[dict[str, Any], int]:
    """What a segment says that it is, and where its records begin."""
    length, checksum = PREFIX.unpack_from(data.ljust(16, b"\0"), len(MAGIC))
    start = len(MAGIC) + PREFIX.size
    payload = data[start : start + length]
    if data[: len(MAGIC)] != MAGIC or zlib.crc32(payload) != checksum:
        raise ValueError("not a header")
    return msgspec.msgpack.decode(payload), start + length


def record_places(data: bytes) -> list[tuple[int, bytes]]:
    """The place and the payload of each intact record, up to the first that is none."""
    at, found = header_of(data)[1], []
    while at + PREFIX.size <= len(data):
        length, checksum = PREFIX.unpack_from(data, at)
        payload = data[at + PREFIX.size : at + PREFIX.size + length]
        if length == 0 or len(payload) < length or zlib.crc32(payload) != checksum:
            break
        found.append((at, payload))
        at += PREFIX.size + length
    return found


def segments_of(writer: Path, stream: str) -> list[Path]:
    """The files of a stream, oldest first."""
    return sorted(writer.glob(f"{stream}-*.seg"))


def written_records(writer: Path, stream: str) -> dict[int, bytes]:
    """Every record of a stream by its number, of a folder that nobody has damaged."""
    records: dict[int, bytes] = {}
    for path in segments_of(writer, stream):
        data = path.read_bytes()
        first = header_of(data)[0]["first_seq"]
        assert first == len(records), f"{path.name} does not continue"
        records |= {first + index: payload for index, (_, payload) in enumerate(record_places(data))}
    return records


def read_raw(run_folder: Path) -> dict[Stream, dict[int, Any]]:
    """Every whole record of a run as plain dictionaries, by its stream and its number."""
    found: dict[Stream, dict[int, Any]] = {}
    for path in sorted(run_folder.glob("*/*.seg")):
        data = path.read_bytes()
        said, _ = header_of(data)
        assert (said["run"], said["writer"]) == (run_folder.name, path.parent.name), path
        records = found.setdefault((said["writer"], said["stream"]), {})
        for number, (_, payload) in enumerate(record_places(data), said["first_seq"]):
            records[number] = msgspec.msgpack.decode(payload)
    return found
