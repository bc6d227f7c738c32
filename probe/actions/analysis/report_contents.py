"""What a report needs of one writer's journal, read once and bounded in size. Reads files; no torch."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ...delivery.journal.journal_reader import Skipped, read_stream
from ...delivery.journal.segment_files import list_segments
from ...errors import WireError
from ...wire import (
    Document,
    Event,
    Frame,
    Layout,
    Record,
    RunStart,
    StreamName,
    decode_record,
    member_number,
)
from ...wire.columns import unpack_column, unpack_missing
from ...wire.event_json import jsonable
from ...wire.run_summary import since_cleared
from . import tables
from .call_results import Result
from .report_curves import Curve, RunningSummary

METRICS_BYTES: Final = 64 * 1024 * 1024
"""Newest metrics that are read: half a second of decoding."""
STEPS: Final = 500
"""Newest steps that are kept one by one."""
FLOW_STEPS: Final = 96
"""Steps whose gradients are kept layer by layer, at most; from half as many on."""
MOST_LAYERS: Final = 2000
MOST_DOCUMENTS: Final = 200
"""Newest documents of a kind."""
_MOST_CURVES: Final = 24
_CURVES: Final = (
    *("loss", "val_loss", "grad_norm", "step_time_s", "process_rss_bytes", "cuda_allocated_bytes"),
    *("lr", "samples"),
)
_STREAMS: Final[tuple[StreamName, ...]] = ("events", "metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMemory(Result):
    """What was in use at the end of an epoch."""

    epoch: int
    """How many had ended, this one included."""
    step: int
    """Its last; the next one, where the epoch ended in the middle of an accumulation."""
    time: float
    """UNIX seconds of that step."""
    process_rss_bytes: float | None
    """Resident memory of the training process."""
    cuda_allocated_bytes: float | None
    """Of the current device; None where CUDA is not in use."""


class Contents:
    """What has been read of one writer.

    Args:
        only_since_cleared: leave out the frames before the newest clearing; the events have to come first.
    """

    def __init__(self, *, only_since_cleared: bool = False) -> None:
        self.start: RunStart | None = None
        self.layouts: dict[int, Layout] = {}
        self.events: dict[str, Event] = {}
        self._member = 0
        self.documents: dict[tuple[str, str], Document] = {}
        self.series: dict[str, RunningSummary] = {}
        self.curves: dict[str, Curve] = {}
        self.steps: deque[dict[str, Any]] = deque(maxlen=STEPS)
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.epochs: dict[int, EpochMemory] = {}
        """By number; the latest word on each."""
        self.flow: list[Frame] = []
        """Frames that have gradient norms, evenly spread."""
        self.newest: Frame | None = None
        """The last one of these."""
        self.notes: list[str] = []
        self._only_since_cleared, self._from_step = only_since_cleared, 0
        self._flow_every, self._flow_offered = 1, 0

    @property
    def layout(self) -> Layout | None:
        """The newest one."""
        return self.layouts[max(self.layouts)] if self.layouts else None

    @property
    def total_steps(self) -> int:
        """Steps that were made."""
        return 0 if self.last_step is None else self.last_step + 1

    def add(self, record: Record) -> None:
        """Take one record."""
        if isinstance(record, Frame):
            self._add_frame(record)
        elif isinstance(record, Event):
            self.events[record.id] = record
        elif isinstance(record, Document):
            self.documents.pop((record.kind, record.key), None)
            self.documents[record.kind, record.key] = record
        elif isinstance(record, Layout):
            self.layouts[record.layout] = record
        elif isinstance(record, RunStart):
            self.start = record
            self._member = member_number(record.member)

    def end_events(self) -> None:
        """All events are there; what follows are the frames. Of several models the newest one counts."""
        known = self.events.items()
        self.events = {key: one for key, one in known if member_number(one.member) == self._member}
        if self._only_since_cleared:
            self._from_step = since_cleared(self.events.values())[1]

    def documents_of(self, kind: str) -> list[dict[str, Any]]:
        """The newest documents of a kind, decoded: `key`, `step`, `time` and `body`."""
        found = [document for document in self.documents.values() if document.kind == kind]
        return [
            {"key": one.key, "step": one.step, "time": one.time, "body": _plain_body(one.body)}
            for one in found[-MOST_DOCUMENTS:]
        ]

    def _add_frame(self, frame: Frame) -> None:
        if frame.member != self._member:
            return
        self.last_step = frame.step if self.last_step is None else max(self.last_step, frame.step)
        if frame.step < self._from_step:
            return
        self.first_step = frame.step if self.first_step is None else min(self.first_step, frame.step)
        for name, value in frame.scalars.items():
            self._add_scalar(name, frame.step, value)
        scalars = {name: jsonable(value) for name, value in frame.scalars.items()}
        self.steps.append({"step": frame.step, "time": frame.time, **scalars})
        if math.isfinite(epoch := frame.scalars.get("epoch", math.nan)):
            self.epochs[int(epoch)] = EpochMemory(
                epoch=int(epoch),
                step=frame.step,
                time=frame.time,
                process_rss_bytes=frame.scalars.get("process_rss_bytes"),
                cuda_allocated_bytes=frame.scalars.get("cuda_allocated_bytes"),
            )
        if any(column.name == "grad_norm" for column in frame.columns):
            self.newest = frame
            self._offer_flow(frame)

    def _add_scalar(self, name: str, step: int, value: float) -> None:
        if (summary := self.series.get(name)) is None:
            summary = self.series[name] = RunningSummary()
        summary.add(value)
        curve = self.curves.get(name)
        is_wanted = name in _CURVES or name.startswith("log/")
        if curve is None and is_wanted and len(self.curves) < _MOST_CURVES:
            curve = self.curves[name] = Curve()
        if curve is not None:
            curve.add(step, value)

    def _offer_flow(self, frame: Frame) -> None:
        if self._flow_offered % self._flow_every == 0:
            self.flow.append(frame)
            if len(self.flow) > FLOW_STEPS:
                self.flow, self._flow_every = self.flow[::2], 2 * self._flow_every
        self._flow_offered += 1


def read_contents(writer: Path, *, only_since_cleared: bool = False) -> Contents:
    """Read what one incarnation of one rank has written so far: events, and the newest of its metrics.

    Args:
        writer: its folder, `SPOOL/<run id>/<rank>-<incarnation>`.
        only_since_cleared: leave out the frames before the newest `run.clear()`.
    """
    contents = Contents(only_since_cleared=only_since_cleared)
    unreadable = 0
    from_seq, is_whole = beginning(writer)
    holes: list[Skipped] = []
    for stream in _STREAMS:
        first = from_seq if stream == "metrics" else 0
        for _, data in read_stream(writer, stream, from_seq=first, on_skip=holes.append):
            try:
                contents.add(decode_record(data))
            except WireError:
                unreadable += 1
        contents.end_events()
    unreadable += sum(hole.end_seq - hole.first_seq for hole in holes)
    if not is_whole:
        newest = tables.size(METRICS_BYTES)
        contents.notes.append(
            f"series are of the newest {newest} of metrics, from step {contents.first_step}"
        )
    if unreadable:
        contents.notes.append(f"{unreadable} records of the journal are lost or unreadable")
    return contents


def layer_norms(contents: Contents, frame: Frame | None) -> dict[str, float]:
    """L2 norm of each layer's gradient in a frame, in model order; layers without a gradient are left out."""
    layout = None if frame is None else contents.layouts.get(frame.layout)
    column = None if frame is None else next((c for c in frame.columns if c.name == "grad_norm"), None)
    if frame is None or layout is None or column is None:
        return {}
    norms, missing = unpack_column(column), unpack_missing(frame, len(layout.parameters))
    members: dict[str, list[float]] = {}
    for info, norm, is_missing in zip(layout.parameters, norms, missing, strict=True):
        if not is_missing:
            members.setdefault(layout.layers[info.layer].name, []).append(float(norm))
    return {
        layer: math.hypot(*values) if all(map(math.isfinite, values)) else sum(values)
        for layer, values in members.items()
    }


def gradient_flow(contents: Contents) -> dict[str, Any]:
    """Norms of the layers' gradients at steps spread over what was read.

    Returns:
        `steps`, and `layers` in model order: each its `name`, `norms` (one for each of `steps`, None without
        a gradient), and `ratio` of the newest one to that of the layer behind it, nearer the loss.
    """
    frames = contents.flow
    columns = [layer_norms(contents, frame) for frame in frames]
    names = list(dict.fromkeys(name for column in columns for name in column))[:MOST_LAYERS]
    newest = layer_norms(contents, contents.newest)
    ratios = dict(_ratios(names, newest))
    layers = [
        {"name": name, "norms": [column.get(name) for column in columns], "ratio": ratios.get(name)}
        for name in names
    ]
    return {"steps": [frame.step for frame in frames], "layers": layers}


def _ratios(names: Sequence[str], norms: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Each layer's norm over that of the next one with a finite norm above 0."""
    known = [name for name in names if name in norms]
    for name, behind in pairwise(known):
        if norms[behind] > 0 and math.isfinite(norms[behind]) and math.isfinite(norms[name]):
            yield name, norms[name] / norms[behind]


def _plain_body(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return {"problem": "this document does not decode"}


def beginning(writer: Path) -> tuple[int, bool]:
    """Sequence number of the metrics from which to read, and whether that is all there is."""
    segments = list_segments(writer, "metrics")
    total = 0
    for index in reversed(range(len(segments))):
        total += segments[index].path.stat().st_size
        if total > METRICS_BYTES and index + 1 < len(segments):
            return segments[index + 1].first_seq, False
    return (segments[0].first_seq if segments else 0), True
