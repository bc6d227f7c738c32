"""The newest steps' statistics: read back from the run's journal, and written as a small spool of their own.

So the run needs no ring of them in memory, and the commands that read a spool read a bundle too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ...delivery.journal.journal import JournalWriter
from ...delivery.journal.journal_reader import read_stream
from ...delivery.journal.run_json import run_json
from ...errors import WireError
from ...settings.places import write_new_file
from ...wire import Event, Frame, Layout, Record, RunStart, decode_record, encode
from ...wire.event_json import jsonable

STEPS: Final = 64
_OfMember = TypeVar("_OfMember", Frame, Layout, Event)
_RATES: Final = ("lr", "amp_scale")


def newest_frames(
    journal: Path,
    unwritten: Sequence[Frame] = (),
    *,
    member: int = 0,
    end_seq: int,
    waiting: int,
    last_step: int,
) -> list[Frame]:
    """Return the frames of the last `STEPS` steps before a moment, oldest first.

    Args:
        journal: the folder of one writer, which may go on meanwhile.
        unwritten: the newest frames, which had not been given to the recorder then.
        member: of the run; the others' frames are left out.
        end_seq: how many records its metrics had then.
        waiting: how many more the recorder had, about.
        last_step: the one then; of what was written since, it tells what was there.
    """
    newer = {frame.step for frame in unwritten}
    first = max(0, end_seq - 2 * STEPS)
    frames = []
    for seq, data in islice(read_stream(journal, "metrics", from_seq=first), 3 * STEPS + waiting):
        frame = _decoded(data)
        if not isinstance(frame, Frame) or frame.member != member:
            continue
        if seq < end_seq or (frame.step <= last_step and frame.step not in newer):
            frames.append(frame)
    return [*frames, *unwritten][-STEPS:]


def scalars_by_step(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """What `statistics.json` says: the numbers that a step has one of."""
    return [jsonable({"step": frame.step, "time": frame.time, **frame.scalars}) for frame in frames]


def learning_rates(frames: Sequence[Frame]) -> dict[str, Any]:
    """Learning rates and scale of the GradScaler as they were last."""
    found: dict[str, float] = {}
    for frame in frames:
        found |= {name: value for name, value in frame.scalars.items() if _is_rate(name)}
    values: dict[str, Any] = jsonable(found)
    return values


def write_spool(
    spool: Path, start: RunStart, events: Sequence[Event], frames: Sequence[Frame], journal: Path
) -> None:
    """Write a spool with one run: its start, the layouts that the frames need, the events, the frames.

    The start names no process: whether that one still lives says nothing of what is kept here.

    Raises:
        JournalError: it cannot be written.
    """
    writer = f"{start.rank}-{start.incarnation}"
    layouts = _layouts(journal)
    # What is opened with the bundle is the one model that it is of.
    frames = [_alone(frame) for frame in frames]
    needed = [layouts[number] for number in sorted({frame.layout for frame in frames} & set(layouts))]
    start = msgspec.structs.replace(start, pid=0, boot=0, started_ticks=0, member=msgspec.UNSET)
    out = JournalWriter(spool / start.run / writer, run=start.run, writer=writer)
    try:
        write_new_file(spool / start.run / "run.json", run_json(start))
        records: list[Record] = [start, *map(_alone, needed), *map(_alone, events)]
        out.append_many("events", [encode(record) for record in records])
        if frames:
            out.append_many("metrics", [encode(frame) for frame in frames])
    finally:
        out.close()


def _alone(record: _OfMember) -> _OfMember:
    """Return a record as that of the only model of its run."""
    member = 0 if isinstance(record, Frame) else msgspec.UNSET
    return msgspec.structs.replace(record, member=member) if record.member else record


def _layouts(journal: Path) -> Mapping[int, Layout]:
    found: dict[int, Layout] = {}
    for _, data in read_stream(journal, "events"):
        # A run may have many events: only what says that it is a layout is decoded.
        if b"layout" in data[:16] and isinstance(record := _decoded(data), Layout):
            found[record.layout] = record
    return found


def _decoded(data: bytes) -> Any:
    try:
        return decode_record(data)
    except WireError:
        return None


def _is_rate(name: str) -> bool:
    return name in _RATES or name.startswith("lr/")
