"""What the ring of a killed trainer holds and its journal does not; read only, by the helper and by readers.

Two readers at once, or one after a helper that was killed in the middle of taking, find the same records with
the same numbers: a ring's newest `Mark` and the end of the metrics stream leave one answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...wire.ordinary_files import NotOrdinaryError, ordinary_file, read_up_to
from ..recorder.process_identity import is_alive, is_of_this_boot
from ..recorder.ring_format import (
    PAD,
    RECORD_HEAD,
    RingRecord,
    Template,
    metrics_of,
    read_template,
    records_between,
)
from ..recorder.ring_header import (
    HEADER_BYTES,
    Counters,
    Mark,
    newest_mark,
    read_counters,
    read_owner,
    ring_problem,
    template_payloads,
)
from .segment_files import RING_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class RingImage:
    """A ring file as it was when it was read."""

    path: Path
    data: bytes
    counters: Counters
    mark: Mark
    templates: dict[int, Template]
    written_s: float
    """UNIX seconds."""
    is_alive: bool
    """Whether the trainer that appends still lives: then nobody else takes its records."""
    has_last_counters: bool
    """Whether the header is as the appender has left it: it was its memory, and the machine is still up."""

    def between(self, start: int, end: int) -> Iterator[RingRecord]:
        """Yield the records of `[start, end)`, total bytes."""
        area = np.frombuffer(self.data, np.uint8, self.counters.capacity, HEADER_BYTES)
        return records_between(area.data, start, end, numbers=area.view(np.uint64))

    def following(self, start: int, seq: int) -> Iterator[RingRecord]:
        """Yield the records from total byte `start` on, of which the first has the number `seq`.

        C code writes records alone: the file's header is as old as the newest taking, and not believed here.
        What lies behind the newest record is older, and has another number.
        """
        for record in self.between(start, start + self.counters.capacity):
            if record.seq != seq:
                return
            seq += 1
            yield record

    def has_torn(self, start: int, seq: int) -> bool:
        """Whether what lies at total byte `start` was once the record of this number."""
        at = HEADER_BYTES + start % self.counters.capacity
        if at + RECORD_HEAD.size > HEADER_BYTES + self.counters.capacity:
            return False
        _, _, kind, found = RECORD_HEAD.unpack_from(self.data, at)
        return kind != PAD and bool(found == seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What of a ring is not in the journal."""

    begun: list[bytes]
    """Metrics records that somebody had begun to write: those of the newest mark that are missing."""
    following: list[bytes]
    """What comes after them."""
    mark: Mark
    """To be written before `following` is: it says that these are being moved."""
    lost: int
    """Ring records that are torn, or that are none."""
    is_stale: bool = False
    """Whether the ring is older than the journal, a copy that was put back: nothing of it is read."""

    @property
    def records(self) -> list[bytes]:
        """All of them, in order."""
        return self.begun + self.following


def ring_paths(folder: Path) -> list[Path]:
    """Return a writer's rings, in the order in which they were begun: `ring`, `ring-1`, ..."""
    names = [match for path in folder.glob("ring*") if (match := RING_NAME.fullmatch(path.name)) is not None]
    return [folder / match[0] for match in sorted(names, key=lambda match: int(match[1] or 0))]


def read_ring(path: Path) -> RingImage | None:
    """Read a ring; None where there is none that this version knows."""
    with contextlib.suppress(OSError):
        written_s = path.lstat().st_mtime
        data = _read_file(path)
        counters, mark = read_counters(data[:HEADER_BYTES]), newest_mark(data[:HEADER_BYTES].ljust(256))
        if counters is None or mark is None or problem_of(path, data) is not None:
            return None
        templates = template_payloads(data).items()
        decoded = {number: read_template(payload) for number, payload in templates}
        owner = read_owner(data)
        return RingImage(
            path=path,
            data=data,
            counters=counters,
            mark=mark,
            templates={number: template for number, template in decoded.items() if template is not None},
            written_s=written_s,
            is_alive=is_alive(owner, silent_s=time.time() - written_s),
            has_last_counters=counters.descriptor < 0 and is_of_this_boot(owner),
        )
    return None


def problem_of(path: Path, data: bytes) -> str | None:
    """Say why what lies at a ring's place is not its writer's ring; None where it is, or is newer than us."""
    problem = ring_problem(path, data)
    counters = read_counters(data)
    if problem is None and counters is not None and len(data) < HEADER_BYTES + counters.capacity:
        problem = f"it is cut off after {len(data):,} bytes"
    return problem


def odd_rings(folder: Path) -> dict[Path, str]:
    """Return what lies where a writer's rings do and is none of its rings, and why."""
    found: dict[Path, str] = {}
    for path in ring_paths(folder):
        with contextlib.suppress(OSError):
            try:
                problem = problem_of(path, _read_file(path))
            except NotOrdinaryError as error:
                problem = error.strerror
            if problem:
                found[path] = problem
    return found


def _read_file(path: Path) -> bytes:
    """Return a ring's bytes, or no more than a header of what does not begin like one.

    Raises:
        OSError: it cannot be read, or is none of the files that are.
    """
    with ordinary_file(path) as descriptor:
        header = read_up_to(descriptor, HEADER_BYTES)
        counters = read_counters(header)
        return header if counters is None else read_up_to(descriptor, HEADER_BYTES + counters.capacity)


def _has_living_owner(path: Path) -> bool:
    """Whether the header alone says that the trainer lives: a ring of megabytes is not read to see that."""
    with contextlib.suppress(OSError), ordinary_file(path) as descriptor:
        header = read_up_to(descriptor, HEADER_BYTES)
        if read_counters(header) is not None and ring_problem(path, header) is None:
            return is_alive(read_owner(header), silent_s=time.time() - os.fstat(descriptor).st_mtime)
    return False


def rest_of(image: RingImage, *, metrics_end: int, is_only: bool = True) -> Rest:
    """Return what is not in the journal.

    Args:
        image: the ring.
        metrics_end: number after the last record of the metrics stream.
        is_only: the writer has no other ring, of which records have come to the journal since.
    """
    mark = image.mark
    # A mark is written before what it tells of.
    most = mark.next_seq + mark.records if mark.next_seq >= 0 else 0
    if is_only and metrics_end > most and (mark.next_seq >= 0 or image.path.name == "ring"):
        return Rest(begun=[], following=[], mark=mark, lost=0, is_stale=True)
    done = mark.records if mark.next_seq < 0 else max(metrics_end - mark.next_seq, 0)
    begun: list[bytes] = []
    lost = 0
    if done < mark.records:
        moved = [data for data, _ in metrics_of(image.between(mark.tail, mark.end), image.templates)]
        begun = [data for data in moved if data is not None][done:]
        lost += mark.records - done - len(begun)
    following, end, seq = [], mark.end, mark.end_seq
    for data, records in metrics_of(image.following(mark.end, mark.end_seq), image.templates):
        end, seq = records[-1].end, records[-1].seq + 1
        lost += data is None
        following += [] if data is None else [data]
    # The header may not know of the newest ones. Where it does, one behind them was never whole: its step had
    # not ended when the trainer was killed.
    is_torn = not image.has_last_counters and image.has_torn(end, seq)
    lost += max(image.counters.next_seq - seq, is_torn)
    next_seq = metrics_end + len(begun)
    taken = Mark(mark.generation + 1, mark.end, mark.end_seq, next_seq, end, seq, len(following))
    return Rest(begun=begun, following=following, mark=taken, lost=lost)


def read_rest(folder: Path, *, metrics_end: int) -> list[bytes]:
    """Return the metrics records that the rings of a dead writer hold beyond its journal, in order."""
    return _rest_of_all(dead_rings(folder), metrics_end)


def read_rest_of_living(folder: Path, *, metrics_end: int) -> list[bytes]:
    """Return what the rings of a living writer hold beyond its journal; who asks takes none of it."""
    images = [image for path in ring_paths(folder) if (image := read_ring(path)) is not None]
    return _rest_of_all(images, metrics_end)


def _rest_of_all(images: Sequence[RingImage], metrics_end: int) -> list[bytes]:
    records: list[bytes] = []
    for image in images:
        end = metrics_end + len(records)
        records += rest_of(image, metrics_end=end, is_only=len(images) == 1).records
    return records


def dead_rings(folder: Path) -> list[RingImage]:
    """Return the rings of a writer that is gone, in their order; none behind one whose trainer lives."""
    images = []
    for path in ring_paths(folder):
        if _has_living_owner(path):
            break
        image = read_ring(path)
        if image is not None:
            images.append(image)
    return images
