"""Tells what a killed trainer's ring has lost: records that were torn, as a power cut leaves them.

The event stands behind the last of the writer's events, at the same number whether a reader makes it, of the
ring, or the helper writes it when it takes the ring. Like `ring_rest`, loaded where there is a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ...detectors.advice import advice_for
from ...errors import WireError
from ...wire import Event, Evidence, Frame, Layout, Record, RunStart, decode_record, encode
from ...wire.events import make_event
from .ring_rest import dead_rings, rest_of

_SUBJECT = "torn"


def event_of_loss(
    folder: Path,
    *,
    metrics_end: Callable[[], int],
    metrics: Callable[[], Iterable[bytes]],
    events: Iterable[bytes],
) -> bytes | None:
    """Return the event that tells of a dead writer's torn records; None where none is, or it is there.

    Args:
        folder: the writer's.
        metrics_end: gives the number after the last record of its metrics.
        metrics: gives all of these.
        events: all of its events stream.
    """
    images = dead_rings(folder)
    if not images:
        return None
    lost, found, end = 0, list[bytes](), metrics_end()
    for image in images:
        rest = rest_of(image, metrics_end=end + len(found))
        lost += rest.lost
        found += rest.records
    if not lost:
        return None
    decoded = [record for data in events if (record := _decoded(data)) is not None]
    start = next((record for record in decoded if isinstance(record, RunStart)), None)
    if start is None:
        return None
    event = make_event(
        start,
        next((record.model for record in decoded if isinstance(record, Layout)), ""),
        "data_gap",
        _SUBJECT,
        step=_last_step(found) or _last_step(metrics()) or 0,
        time=max(image.written_s for image in images),
        severity="warning",
        message=f"{lost:,} of the newest records of this run were torn when it was killed, and are lost",
        evidence=Evidence(value=float(lost)),
        advice=advice_for("data_gap"),
        ended=True,
    )
    is_known = any(isinstance(record, Event) and record.id == event.id for record in decoded)
    return None if is_known else encode(event)


def _last_step(metrics: Iterable[bytes]) -> int | None:
    """The newest step of these records."""
    frames = (record for data in metrics if isinstance(record := _decoded(data), Frame))
    return max((frame.step for frame in frames), default=None)


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except WireError:
        return None
