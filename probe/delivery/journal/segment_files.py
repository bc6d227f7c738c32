"""Which segment files a stream and a run have, and how much room they take: names and sizes, no contents.

Used by the journal's writer and by everybody who reads one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from ...wire import StreamName
from .segments import parse_segment_name


class Segment(msgspec.Struct, frozen=True):
    """One segment file, by what its name says."""

    path: Path
    first_seq: int


def list_segments(folder: Path, stream: StreamName) -> list[Segment]:
    """Return a stream's segments, oldest first; empty for a folder that is not there."""
    segments: list[Segment] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - a Path per file is dear when polling
            parsed = parse_segment_name(name)
            if parsed and parsed[0] == stream:
                segments.append(Segment(folder / name, parsed[1]))
    return segments


def run_folder_bytes(run_folder: Path) -> int:
    """Return the size in bytes of all segments of a run."""
    total = 0
    for path in run_folder.glob("*/*.seg"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
