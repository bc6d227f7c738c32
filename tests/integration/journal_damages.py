"""What may happen to a writer's segments: by name, a function that does it and what is lost by it."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from written_journal import PREFIX, header_of, record_places, segments_of

Damage = Callable[[Path], dict[str, int]]
"""Damages a writer's folder; returns how many records of each stream are lost."""


def cut(stream: str, records: int) -> Damage:
    """Cut the last segment by some records."""

    def damage(writer: Path) -> dict[str, int]:
        path = segments_of(writer, stream)[-1]
        data = path.read_bytes()
        gone = min(records, len(record_places(data)))
        path.write_bytes(data[: record_places(data)[-gone][0]])
        return {stream: gone}

    return damage


def cut_within(stream: str) -> Damage:
    """Cut the last segment in the middle of its last record."""

    def damage(writer: Path) -> dict[str, int]:
        path = segments_of(writer, stream)[-1]
        data = path.read_bytes()
        path.write_bytes(data[: record_places(data)[-1][0] + PREFIX.size + 1])
        return {stream: 1}

    return damage


def zero(stream: str, records: int) -> Damage:
    """Write zeros over the last records, as a power cut leaves them."""

    def damage(writer: Path) -> dict[str, int]:
        path = segments_of(writer, stream)[-1]
        data = path.read_bytes()
        places = record_places(data)
        gone = min(records, len(places))
        start = places[-gone][0]
        path.write_bytes(data[:start] + bytes(len(data) - start))
        return {stream: gone}

    return damage


def delete(stream: str, *which: int) -> Damage:
    """Delete segments by their index; all without one."""

    def damage(writer: Path) -> dict[str, int]:
        paths = segments_of(writer, stream)
        chosen = [paths[index] for index in which] or paths
        gone = sum(len(record_places(path.read_bytes())) for path in chosen)
        for path in chosen:
            path.unlink()
        return {stream: gone}

    return damage


def spoil_header(stream: str, index: int = -1) -> Damage:
    """Change one byte of a segment's header."""

    def damage(writer: Path) -> dict[str, int]:
        path = segments_of(writer, stream)[index]
        data = bytearray(path.read_bytes())
        gone = len(record_places(bytes(data)))
        data[20] ^= 0xFF
        path.write_bytes(data)
        return {stream: gone}

    return damage


def empty(stream: str, index: int = -1) -> Damage:
    """Leave a segment without a byte."""

    def damage(writer: Path) -> dict[str, int]:
        path = segments_of(writer, stream)[index]
        gone = len(record_places(path.read_bytes()))
        path.write_bytes(b"")
        return {stream: gone}

    return damage


def swap(stream: str, one: int, other: int) -> Damage:
    """Let two segments change their names."""

    def damage(writer: Path) -> dict[str, int]:
        first, second = segments_of(writer, stream)[one], segments_of(writer, stream)[other]
        gone = sum(len(record_places(path.read_bytes())) for path in (first, second))
        aside = writer / "aside"
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        return {stream: gone}

    return damage


def copy(stream: str, index: int, number: int, *, spoiled: bool = False) -> Damage:
    """Copy a segment to another number; spoiled: with a header that cannot be read."""

    def damage(writer: Path) -> dict[str, int]:
        data = bytearray(segments_of(writer, stream)[index].read_bytes())
        if spoiled:
            data[20] ^= 0xFF
        (writer / f"{stream}-{number:020d}.seg").write_bytes(data)
        return {}

    return damage


def copy_over(stream: str, index: int, onto: int) -> Damage:
    """Copy a segment over another."""

    def damage(writer: Path) -> dict[str, int]:
        paths = segments_of(writer, stream)
        gone = len(record_places(paths[onto].read_bytes()))
        shutil.copyfile(paths[index], paths[onto])
        return {stream: gone}

    return damage


def from_elsewhere(writer: Path) -> dict[str, int]:
    """Put another run's segment over the last one: the same stream and the same number."""
    path = segments_of(writer, "metrics")[-1]
    data = path.read_bytes()
    _, start = header_of(data)
    gone = len(record_places(data))
    other = data[:start].replace(writer.parent.name.encode(), b"otherone", 1)
    payload = other[16:]
    path.write_bytes(other[:8] + PREFIX.pack(len(payload), zlib.crc32(payload)) + payload + data[start:])
    return {"metrics": gone}


def odd_files(writer: Path) -> dict[str, int]:
    """Put what no writer has made beside the segments: too large a number, a folder, a pipe, a loop."""
    shutil.copyfile(segments_of(writer, "metrics")[0], writer / "metrics-99999999999999999999.seg")
    (writer / "metrics-00000000000000000007.seg").mkdir()
    os.mkfifo(writer / "metrics-00000000000000000013.seg")
    (writer / "events-00000000000000000005.seg").symlink_to("events-00000000000000000005.seg")
    return {}


DAMAGES: dict[str, Damage] = {
    "nothing": lambda writer: {},
    "steps cut by 14": cut("metrics", 14),
    "steps cut within one": cut_within("metrics"),
    "last segment of steps deleted": delete("metrics", -1),
    "header of last steps": spoil_header("metrics"),
    "last steps zeroed": zero("metrics", 13),
    "last segment of steps emptied": empty("metrics"),
    "all steps deleted": delete("metrics"),
    "events cut by 5": cut("events", 5),
    "events zeroed": zero("events", 7),
    "header of last events": spoil_header("events"),
    "last two segments of events deleted": delete("events", -1, -2),
    "all events deleted": delete("events"),
    "stray copy": copy("metrics", 0, 17),
    "stray copy without a header": copy("metrics", 0, 17, spoiled=True),
    "copy at the end": copy("metrics", 0, 5337),
    "copy at the end without a header": copy("metrics", 0, 5337, spoiled=True),
    "copy over another": copy_over("metrics", 0, 1),
    "two swapped": swap("metrics", 0, 1),
    "last two swapped": swap("events", -1, -2),
    "another run's": from_elsewhere,
    "odd files": odd_files,
}
TELLS_OF_A_FILE = {
    *("stray copy", "stray copy without a header", "copy at the end", "copy at the end without a header"),
    *("copy over another", "two swapped", "last two swapped", "another run's", "odd files"),
}
