"""What a run's journal says, as one report for a person and one for a program. Reads files; no torch.

Called at the end of a run. Of a long run only the newest metrics are read, and the report says so.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from ...delivery.journal.journal_reader import Skipped, read_stream
from ...delivery.journal.segment_files import list_segments
from ...errors import WireError
from ...wire import Event, Frame, Layout, Record, RunStart, StreamName, decode_record
from ...wire.columns import unpack_column, unpack_missing
from ...wire.event_json import event_json
from . import tables
from .call_results import Result

METRICS_BYTES: Final = 64 * 1024 * 1024
"""Newest metrics that are read: half a second of decoding."""
_EPOCHS: Final = 1000
_SEVERITIES: Final = ("critical", "warning", "info")
_STREAMS: Final[tuple[StreamName, ...]] = ("events", "metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSummary(Result):
    """One scalar of the steps that were read; non-finite values are counted, and left out of the rest."""

    name: str
    count: int
    first: float | None
    last: float | None
    low: float | None
    high: float | None
    mean: float | None
    nonfinite: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Result):
    """One rank of one run, as its journal has it."""

    _derived: ClassVar[tuple[str, ...]] = ("ok",)

    run: str
    name: str
    rank: int
    level: str
    started: float | None
    """UNIX seconds."""
    versions: dict[str, str]
    model: str
    layers: int
    parameters: int
    """Parameter tensors."""
    first_step: int | None
    """Of the metrics that were read."""
    last_step: int | None
    metrics_complete: bool
    """False when only the newest metrics were read, or some are lost."""
    series: tuple[SeriesSummary, ...]
    epochs: tuple[EpochMemory, ...]
    """Of the metrics that were read, the newest 1000."""
    last_gradient_norms: dict[str, float]
    """L2 norm of each layer's gradient at the last step that has them."""
    event_counts: dict[str, int]
    """By kind."""
    severity_counts: dict[str, int]
    events: tuple[dict[str, Any], ...]
    """As docs/interfaces.md fixes them, by step."""
    extra: dict[str, Any]
    """What the caller adds: parameters, regions, model."""
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No critical event and no warning."""
        return not any(self.severity_counts.get(severity) for severity in ("critical", "warning"))

    def __str__(self) -> str:
        """Verdict, series, events, and what the caller added."""
        seen = "no step" if self.last_step is None else f"steps {self.first_step} to {self.last_step}"
        counts = ", ".join(f"{self.severity_counts.get(severity, 0)} {severity}" for severity in _SEVERITIES)
        lines = [
            f"run {self.run} ({self.name}), rank {self.rank}, level {self.level}: {seen}; events: {counts}",
            f"  model {self.model}: {self.layers} layers, {self.parameters} parameter tensors",
            *(f"  {note}" for note in self.notes),
        ]
        rows = [
            (s.name, *(tables.number(v) for v in (s.first, s.last, s.low, s.high, s.mean)), str(s.nonfinite))
            for s in self.series
        ]
        if rows:
            header = ("series", "first", "last", "lowest", "highest", "mean", "NaN/Inf")
            lines += ["", *tables.table(header, rows)]
        if self.epochs:
            lines += ["", *_epoch_table(self.epochs)]
        lines += ["", "events" if self.events else "no events"]
        lines += [_event_line(event) for event in self.events[-tables.MAX_ROWS :]]
        for title, value in self.extra.items():
            lines += ["", f"{title}:", str(value)]
        return "\n".join(lines)

    def save(self, stem: Path) -> tuple[Path, Path]:
        """Write `<stem>.json` and `<stem>.txt`, each in one piece; return both paths.

        Raises:
            OSError: the folder cannot be written.
        """
        stem.parent.mkdir(parents=True, exist_ok=True)
        written = []
        for ending, text in (
            (".json", json.dumps(self.to_dict(), indent=2, allow_nan=False)),
            (".txt", f"{self}\n"),
        ):
            path = stem.with_name(stem.name + ending)
            unfinished = path.with_name(f".{path.name}.{os.getpid()}")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
            written.append(path)
        return written[0], written[1]


def read_report(writer: Path, *, extra: dict[str, Any] | None = None) -> RunReport:
    """Read what one incarnation of one rank has written so far.

    Args:
        writer: its folder, `SPOOL/<run id>/<rank>-<incarnation>`.
        extra: results to be added, by title: `Result`s or anything that is JSON.
    """
    journal = _read(writer)
    start, layout = journal.start, journal.layout
    events = sorted(journal.events.values(), key=lambda event: (event.step, event.time))
    return RunReport(
        run=writer.parent.name,
        name="" if start is None else start.name,
        rank=int(writer.name.partition("-")[0]),
        level="" if start is None else start.level,
        started=None if start is None else start.time,
        versions={} if start is None else dict(start.versions),
        model="" if layout is None else layout.model,
        layers=0 if layout is None else len(layout.layers),
        parameters=0 if layout is None else len(layout.parameters),
        first_step=journal.first_step,
        last_step=journal.last_step,
        metrics_complete=not journal.notes,
        series=tuple(series.summary(name) for name, series in journal.series.items()),
        epochs=tuple(journal.epochs.values())[-_EPOCHS:],
        last_gradient_norms=_layer_norms(journal),
        event_counts=dict(Counter(event.kind for event in events)),
        severity_counts=dict(Counter(event.severity for event in events)),
        events=tuple(event_json(event) for event in events),
        extra=extra or {},
        notes=tuple(journal.notes),
    )


class _Series:
    """Running summary of one scalar."""

    def __init__(self) -> None:
        self._count = self._nonfinite = 0
        self._sum = 0.0
        self._first: float | None = None
        self._last: float | None = None
        self._low, self._high = math.inf, -math.inf

    def add(self, value: float) -> None:
        self._count += 1
        if not math.isfinite(value):
            self._nonfinite += 1
            return
        self._first = value if self._first is None else self._first
        self._last = value
        self._sum += value
        self._low, self._high = min(self._low, value), max(self._high, value)

    def summary(self, name: str) -> SeriesSummary:
        finite = self._count - self._nonfinite
        return SeriesSummary(
            name=name,
            count=self._count,
            first=self._first,
            last=self._last,
            low=self._low if finite else None,
            high=self._high if finite else None,
            mean=self._sum / finite if finite else None,
            nonfinite=self._nonfinite,
        )


class _Journal:
    """What has been read of one writer."""

    def __init__(self) -> None:
        self.start: RunStart | None = None
        self.layouts: dict[int, Layout] = {}
        self.events: dict[str, Event] = {}
        self.series: dict[str, _Series] = {}
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.epochs: dict[int, EpochMemory] = {}
        """By number; the latest word on each."""
        self.newest: Frame | None = None
        """The last frame that has gradient norms."""
        self.notes: list[str] = []

    @property
    def layout(self) -> Layout | None:
        """The newest one."""
        return self.layouts[max(self.layouts)] if self.layouts else None

    def add(self, record: Record) -> None:
        """Take one record."""
        if isinstance(record, Frame):
            self._add_frame(record)
        elif isinstance(record, Event):
            self.events[record.id] = record
        elif isinstance(record, Layout):
            self.layouts[record.layout] = record
        elif isinstance(record, RunStart):
            self.start = record

    def _add_frame(self, frame: Frame) -> None:
        self.first_step = frame.step if self.first_step is None else min(self.first_step, frame.step)
        self.last_step = frame.step if self.last_step is None else max(self.last_step, frame.step)
        for name, value in frame.scalars.items():
            self.series.setdefault(name, _Series()).add(value)
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


def _read(writer: Path) -> _Journal:
    """Read a writer's events, and the newest of its metrics."""
    journal = _Journal()
    unreadable = 0
    from_seq, is_whole = _beginning(writer)
    holes: list[Skipped] = []
    for stream in _STREAMS:
        first = from_seq if stream == "metrics" else 0
        for _, data in read_stream(writer, stream, from_seq=first, on_skip=holes.append):
            try:
                journal.add(decode_record(data))
            except WireError:
                unreadable += 1
    unreadable += sum(hole.end_seq - hole.first_seq for hole in holes)
    if not is_whole:
        newest = tables.size(METRICS_BYTES)
        journal.notes.append(f"series are of the newest {newest} of metrics, from step {journal.first_step}")
    if unreadable:
        journal.notes.append(f"{unreadable} records of the journal are lost or unreadable")
    return journal


def _beginning(writer: Path) -> tuple[int, bool]:
    """Sequence number of the metrics from which to read, and whether that is all there is."""
    segments = list_segments(writer, "metrics")
    total = 0
    for index in reversed(range(len(segments))):
        total += segments[index].path.stat().st_size
        if total > METRICS_BYTES and index + 1 < len(segments):
            return segments[index + 1].first_seq, False
    return (segments[0].first_seq if segments else 0), True


def _layer_norms(journal: _Journal) -> dict[str, float]:
    """L2 norm of each layer's gradient in the newest frame that has them."""
    frame = journal.newest
    layout = None if frame is None else journal.layouts.get(frame.layout)
    if frame is None or layout is None:
        return {}
    column = next(column for column in frame.columns if column.name == "grad_norm")
    norms, missing = unpack_column(column), unpack_missing(frame, len(layout.parameters))
    members: dict[str, list[float]] = {}
    for info, norm, is_missing in zip(layout.parameters, norms, missing, strict=True):
        if not is_missing:
            members.setdefault(layout.layers[info.layer].name, []).append(float(norm))
    return {
        layer: math.hypot(*values) if all(map(math.isfinite, values)) else sum(values)
        for layer, values in members.items()
    }


def _epoch_table(epochs: tuple[EpochMemory, ...]) -> list[str]:
    """Memory at the end of each of the newest epochs, and how much more that is than at the one before."""
    rows, before = [], None
    for one in epochs:
        now = one.process_rss_bytes
        change = "" if now is None or before is None else tables.signed_size(now - before)
        device = "" if one.cuda_allocated_bytes is None else tables.size(one.cuda_allocated_bytes)
        rows.append((str(one.epoch), str(one.step), "" if now is None else tables.size(now), change, device))
        before = now
    return tables.table(("epoch", "last step", "process", "change", "CUDA"), rows[-tables.MAX_ROWS :])


def _event_line(event: dict[str, Any]) -> str:
    first_line = str(event["message"]).splitlines()[0] if event["message"] else ""
    count = f" x{event['count']}" if event["count"] > 1 else ""
    return f"  step {event['step']:>8}  {event['severity']:<8}  {event['kind']}{count}: {first_line}"
