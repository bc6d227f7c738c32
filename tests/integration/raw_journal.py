"""What was written into a spool, read by the description of its format alone, by nothing of the product.

A segment: ``NANOSEG1``, u32 length, u32 crc32, header in msgpack; then records of u32 length, u32 crc32,
payload. Integers are little-endian; a record's number is the header's `first_seq` plus its index.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

Stream = tuple[str, str]
"""Writer's folder and stream."""


def _chunks(data: bytes, at: int) -> Iterator[bytes]:
    while at + 8 <= len(data):
        length, checksum = struct.unpack_from("<II", data, at)
        payload = data[at + 8 : at + 8 + length]
        if not length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += 8 + length


def read_raw(run_folder: Path) -> dict[Stream, dict[int, Any]]:
    """Every whole record of a run as plain dictionaries, by its stream and its number."""
    found: dict[Stream, dict[int, Any]] = {}
    for path in sorted(run_folder.glob("*/*.seg")):
        data = path.read_bytes()
        assert data[:8] == b"NANOSEG1", path
        header, *payloads = _chunks(data, 8)
        said = msgspec.msgpack.decode(header)
        assert (said["run"], said["writer"]) == (run_folder.name, path.parent.name), path
        records = found.setdefault((said["writer"], said["stream"]), {})
        for number, payload in enumerate(payloads, said["first_seq"]):
            records[number] = msgspec.msgpack.decode(payload)
    return found
