"""Tells what a killed trainer's ring has lost: records that were torn, as a power cut leaves them, or all.

What lies in its place and is another writer's, older than the journal, or damaged is told, and never read.

The event stands behind the last of the writer's events, at the same number whether a reader makes it, of the
ring, or the helper writes it when it takes the ring. Like `ring_rest`, loaded where there is a ring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ...detectors.advice import advice_for
from ...errors import WireError
from ...wire import Event, Evidence, Frame, Layout, Record, RunEnd, RunStart, decode_record, encode
from ...wire.events import make_event
from ..recorder.process_identity import is_gone
from .ring_rest import dead_rings, odd_rings, rest_of

_TORN, _ODD = "torn", "not its own"
_SILENT_S = 60.0


def event_of_loss(
    folder: Path,
    *,
    metrics_end: Callable[[], int],
    metrics: Callable[[], Iterable[bytes]],
    events: Iterable[bytes],
    is_dead: bool = False,
) -> bytes | None:
    """Return the event that tells of a dead writer's torn records; None where none is, or it is there.

    Args:
        folder: the writer's.
        metrics_end: gives the number after the last record of its metrics.
        metrics: gives all of these.
        events: all of its events stream.
        is_dead: it is known that nobody writes any more; else the writer's own start has to tell.
    """
    images, odd = dead_rings(folder), odd_rings(folder)
    if not images and not odd:
        return None
    lost, found, end = 0, list[bytes](), metrics_end()
    for image in images:
        rest = rest_of(image, metrics_end=end + len(found), is_only=len(images) == 1)
        lost += rest.lost
        found += rest.records
        if rest.is_stale:
            # The owner that it names is gone.
            odd[image.path], is_dead = "it is older than the journal", True
    if not lost and not odd:
        return None
    decoded = [record for data in events if (record := _decoded(data)) is not None]
    start = next((record for record in decoded if isinstance(record, RunStart)), None)
    has_ended = any(isinstance(record, RunEnd) for record in decoded)
    if start is None or not (lost or is_dead or has_ended or _is_over(start, odd)):
        return None
    event = make_event(
        start,
        next((record.model for record in decoded if isinstance(record, Layout)), ""),
        "data_gap",
        _TORN if lost else _ODD,
        step=_last_step(found) or _last_step(metrics()) or 0,
        time=max(map(_written_s, (*odd, *(image.path for image in images)))),
        severity="info" if has_ended and not lost else "warning",
        message=" ".join(_sentences(lost, odd, has_ended=has_ended)),
        evidence=Evidence(value=float(lost) if lost else None),
        advice=advice_for("data_gap") if lost or not has_ended else [],
        ended=True,
    )
    is_known = any(isinstance(record, Event) and record.id == event.id for record in decoded)
    return None if is_known else encode(event)


def _sentences(lost: int, odd: Mapping[Path, str], *, has_ended: bool) -> Iterator[str]:
    if lost:
        yield f"{lost:,} of the newest records of this run were torn when it was killed, and are lost."
    for path, why in odd.items():
        yield f"The file `{path.name}`, where a killed run leaves its newest steps, is not read: {why}."
    if odd and has_ended:
        yield "This run ended in order: nothing is missing."
    elif odd:
        yield "What was not in the journal yet is lost, and how much that is, is not known."


def _is_over(start: RunStart, odd: Iterable[Path]) -> bool:
    """Whether nobody is about to make the file: its process is gone, or it was not written for a while."""
    is_over = is_gone(start)
    if is_over is None:
        return time.time() - max(map(_written_s, odd), default=0.0) > _SILENT_S
    return is_over


def _written_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _last_step(metrics: Iterable[bytes]) -> int | None:
    """The newest step of these records."""
    frames = (record for data in metrics if isinstance(record := _decoded(data), Frame))
    return max((frame.step for frame in frames), default=None)


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except WireError:
        return None
