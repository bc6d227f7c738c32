"""Which segment files a stream and a run have, and how much room they take.

A file's name says what it holds, and its header has to say the same: a stray copy, a file that was swapped
with another or that no writer could have named is passed over. Used by the journal's writer and by everybody
who reads one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from ...errors import JournalError
from ...guard import let_pass, suppressed
from ...wire import StreamName
from ...wire.ordinary_files import ordinary_file
from .account import read_account
from .segments import HEADER_READ_BYTES, ODD_NAME, parse_segment_name, unpack_header

MAX_RUN_JSON_BYTES: Final = 64 * 1024**2
"""A `run.json` that is larger is not read."""
RING_NAME: Final = re.compile(r"ring(?:-([0-9]{1,9}))?")
"""The files of a writer's rings."""
_IOV_MAX: Final = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024
ASIDE: Final = ".aside"
"""Ends the name of a file that lay where a writer had to begin a segment."""


class Segment(msgspec.Struct, frozen=True):
    """One segment file, by what its name says."""

    path: Path
    first_seq: int


class Claim(Enum):
    """What a segment's header says of it."""

    OWN = "what its name says"
    FOREIGN = "something else"
    UNFINISHED = "nothing yet"
    DAMAGED = "nothing that can be read"


def list_segments(folder: Path, stream: StreamName) -> list[Segment]:
    """Return what is named like a stream's segments, oldest first; empty for a folder that is not there."""
    return list_files(folder, stream)[0]


def list_files(folder: Path, stream: StreamName) -> tuple[list[Segment], list[str]]:
    """Return what is named like a stream's segments, and names that only begin so: of too large a number."""
    segments: list[Segment] = []
    odd: list[str] = []
    with suppressed(OSError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - a Path per file is dear when polling
            parsed = parse_segment_name(name)
            if parsed is None:
                match = ODD_NAME.fullmatch(name)
                if match and match[1] == stream:
                    odd.append(name)
            elif parsed[0] == stream:
                segments.append(Segment(folder / name, parsed[1]))
    return segments, odd


def own_segments(folder: Path, stream: StreamName) -> Iterator[Segment]:
    """Yield those whose headers say what their names say, or cannot be read; opens one after the other."""
    for segment in list_segments(folder, stream):
        claim, _ = check_segment(segment.path, stream, segment.first_seq)
        if claim is Claim.OWN or (claim is not Claim.FOREIGN and not is_beyond_end(folder, stream, segment)):
            yield segment


def is_beyond_end(folder: Path, stream: StreamName, segment: Segment) -> bool:
    """Whether a segment begins where its writer, by the account, has not been yet."""
    account = read_account(folder)
    return account is not None and segment.first_seq > account.end(stream)


def check_segment(path: Path, stream: StreamName, first_seq: int) -> tuple[Claim, str]:
    """Compare a segment's header with where the file lies.

    Args:
        path: `SPOOL/<run>/<writer>/<name>`.
        stream: by its name.
        first_seq: by its name.

    Returns:
        What it claims to be and, of a foreign one, a sentence without its subject.
    """
    try:
        with ordinary_file(path) as descriptor:
            header = unpack_header(os.pread(descriptor, HEADER_READ_BYTES, 0))
    except FileNotFoundError:
        return Claim.UNFINISHED, ""
    except OSError as error:
        let_pass(error)
        return Claim.FOREIGN, f"cannot be read: {error.strerror or error}"
    except JournalError:
        return Claim.DAMAGED, ""
    if header is None:
        return Claim.UNFINISHED, ""
    said = header[0]
    claimed = (said.run, said.writer, said.stream, said.first_seq)
    # A link to a folder has another name.
    for folder in (path.parent, path.parent.resolve()):
        if claimed == (folder.parent.name, folder.name, stream, first_seq):
            return Claim.OWN, ""
    return Claim.FOREIGN, (
        f"says that it holds {said.stream} of {said.run}/{said.writer} from record {said.first_seq} on"
    )


def bytes_on_disk(found: os.stat_result) -> int:
    """Return the room that a file takes: what a sparse one claims is no reason to delete anything."""
    return min(found.st_size, found.st_blocks * 512)


def run_folder_bytes(run_folder: Path) -> int:
    """Return the size in bytes of all segments of a run."""
    total = 0
    for path in run_folder.glob("*/*.seg"):
        with suppressed(OSError):
            total += bytes_on_disk(path.lstat())
    return total


def write_all(descriptor: int, buffers: list[bytes]) -> int:
    """Write every buffer, however often the kernel takes less than it was given; return the byte count."""
    total = 0
    if len(buffers) == 1:
        total = os.write(descriptor, buffers[0])
        if total == len(buffers[0]):
            return total
        buffers = [buffers[0][total:]]
    for start in range(0, len(buffers), _IOV_MAX):
        pending: list[memoryview] = [memoryview(part) for part in buffers[start : start + _IOV_MAX]]
        while pending:
            count = os.writev(descriptor, pending)
            total += count
            while pending and count >= len(pending[0]):
                count -= len(pending.pop(0))
            if pending and count:
                pending[0] = pending[0][count:]
    return total
