"""Turns the encoded records of one batch into numpy blocks and catalogue entries.

Called by `DuckStore.append`: `decode` without a lock, `Intake` under the store's lock. No database here. A
record that does not decode, contradicts its stream or does not fit its layout is refused and counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from probe.columns import unpack_column, unpack_missing
from probe.errors import WireError
from probe.wire import (
    Column,
    Event,
    Frame,
    Gap,
    HostSample,
    Layout,
    Record,
    RunEnd,
    RunStart,
    StreamKey,
    decode_record,
    encode,
)

from .catalog import LAYER, PARAMETER, SCALAR, Catalog, Incarnation
from .edge import GapRow, Pending, ScalarBlock, TensorBlock, TensorRows
from .layers import REDUCTIONS, Geometry, narrow, reduce_layers
from .pyramid import Flags, Floats, flags_of

MAX_SCALARS: Final = 4096
"""Scalars of one frame."""
MAX_NAME: Final = 1024
"""Characters in the name of a scalar or column."""
WITHOUT_GRADIENT: Final = frozenset({"parameter_norm"})
"""Statistics that exist for a parameter that has no gradient."""
_RANK_WRITER: Final = re.compile(r"^(\d{1,9})-(\d{1,19})$")


class RefusedError(ValueError):
    """A record that decodes and still cannot be stored."""


def decode(records: Iterable[bytes]) -> list[Record | None]:
    """Decode records; None for one that does not decode."""
    result: list[Record | None] = []
    for data in records:
        try:
            result.append(decode_record(data))
        except WireError:
            result.append(None)
    return result


def writer_of(key: StreamKey) -> tuple[int, int] | None:
    """Return (rank, incarnation) of a trainer's stream; None for a helper's."""
    match = _RANK_WRITER.match(key.writer)
    return (int(match.group(1)), int(match.group(2))) if match and int(match.group(2)) < 2**62 else None


class Intake:
    """Sorts the records of one append. Used once."""

    def __init__(self, catalog: Catalog, key: StreamKey, *, now: float) -> None:
        self._catalog = catalog
        self._key = key
        self._now = now
        self._writer = writer_of(key)
        self._pending = Pending()
        self._frames: dict[int, list[tuple[int, Frame]]] = defaultdict(list)

    def take(self, first_seq: int, records: Sequence[Record | None]) -> tuple[Pending, int]:
        """Take decoded records in order.

        Returns:
            What is to be written, and how many records were refused.
        """
        refused = 0
        for seq, record in enumerate(records, first_seq):
            try:
                if record is None:
                    raise RefusedError("does not decode")
                self._take_one(seq, record)
            except RefusedError:
                refused += 1
        self._finish_frames()
        return self._pending, refused

    def _take_one(self, seq: int, record: Record) -> None:
        match record:
            case Frame():
                self._take_frame(seq, record)
            case Event():
                self._expect(record.run == self._key.run, "another run's event")
                self._pending.events.append((record, encode(record)))
                self._hear(record.rank, record.incarnation, record.time)
            case HostSample():
                self._take_host_sample(record)
            case RunStart():
                self._expect(record.run == self._key.run, "another run's start")
                entry = self._hear(record.rank, record.incarnation, record.time)
                entry.start = record
            case Layout():
                rank, incarnation = self._trainer()
                try:
                    self._catalog.add_layout(self._key.run, rank, incarnation, record)
                except ValueError as error:
                    raise RefusedError(str(error)) from error
                self._hear(rank, incarnation, None)
            case Gap():
                self._take_gap(record)
            case RunEnd():
                state = self._hear(*self._trainer(), record.time).state
                state.outcome, state.lost_before_write = record.outcome, record.lost_before_write

    def _expect(self, condition: bool, message: str) -> None:
        if not condition:
            raise RefusedError(message)

    def _trainer(self) -> tuple[int, int]:
        if self._writer is None:
            raise RefusedError(f"not a trainer's stream: {self._key.writer}")
        return self._writer

    def _hear(self, rank: int, incarnation: int, time: float | None) -> Incarnation:
        entry = self._catalog.incarnation(self._key.run, rank, incarnation)
        entry.hear(time, self._now)
        return entry

    def _take_host_sample(self, sample: HostSample) -> None:
        entry = self._hear(sample.rank, sample.incarnation, sample.time)
        entry.state.host_state = sample.state
        row = (self._key.run, sample.rank, sample.incarnation, sample.time, encode(sample))
        self._pending.host_samples.append(row)

    def _take_gap(self, gap: Gap) -> None:
        if gap.stream == "metrics" and gap.end_seq > gap.first_seq:
            state = self._hear(*self._trainer(), gap.time).state
            row = GapRow(
                run=self._key.run,
                writer=self._key.writer,
                source="journal",
                first_seq=gap.first_seq,
                end_seq=gap.end_seq,
                reason=gap.reason,
                first_step=state.last_step,
                last_step=None,
            )
            self._catalog.add_gap(row)

    # -- frames

    def _take_frame(self, seq: int, frame: Frame) -> None:
        rank, incarnation = self._trainer()
        entry = self._hear(rank, incarnation, frame.time)
        timeline = entry.layouts.get(frame.layout)
        if timeline is None:
            raise RefusedError(f"unknown layout {frame.layout}")
        _check(frame, len(self._catalog.layout(timeline)[1].parameters))
        state = entry.state
        state.first_step = frame.step if state.first_step is None else min(state.first_step, frame.step)
        state.last_step, state.last_time = frame.step, frame.time
        self._catalog.close_gap(self._key.run, self._key.writer, frame.step)
        self._frames[timeline].append((seq, frame))

    def _finish_frames(self) -> None:
        if not self._frames:
            return
        rank, incarnation = self._trainer()
        everything = [item for frames in self._frames.values() for item in frames]
        scalars = self._catalog.scalar_timeline(self._key.run, rank)
        if any(frame.scalars for _, frame in everything):
            self._pending.scalars.append(_scalar_block(self._catalog, scalars, incarnation, everything))
        for timeline, frames in self._frames.items():
            if any(frame.columns for _, frame in frames):
                self._pending.tensors.append(_tensor_block(self._catalog, timeline, incarnation, frames))


def _check(frame: Frame, parameters: int) -> None:
    """Refuse a frame that does not fit its layout."""
    if len(frame.scalars) > MAX_SCALARS or any(len(name) > MAX_NAME for name in frame.scalars):
        raise RefusedError("too many scalars or too long a name")
    for column in frame.columns:
        if len(column.data) != parameters * (4 if column.dtype == "f4" else 8):
            raise RefusedError(f"column {column.name!r} does not have {parameters} values")
    if frame.missing and len(frame.missing) * 8 < parameters:
        raise RefusedError("the mask of missing gradients is too short")


def _scalar_block(
    catalog: Catalog, timeline: int, incarnation: int, frames: Sequence[tuple[int, Frame]]
) -> ScalarBlock:
    counts = [len(frame.scalars) for _, frame in frames]
    numbers = {
        name: catalog.add_series(timeline, SCALAR, name) for _, frame in frames for name in frame.scalars
    }
    return ScalarBlock(
        timeline=timeline,
        incarnation=incarnation,
        frame_steps=np.array([frame.step for _, frame in frames], dtype=np.int64),
        series=np.array([numbers[name] for _, frame in frames for name in frame.scalars], dtype=np.int32),
        step=np.repeat(np.array([frame.step for _, frame in frames], dtype=np.int64), counts),
        seq=np.repeat(np.array([seq for seq, _ in frames], dtype=np.int64), counts),
        time=np.repeat(np.array([frame.time for _, frame in frames], dtype=np.float64), counts),
        value=np.array([v for _, frame in frames for v in frame.scalars.values()], dtype=np.float64),
    )


def _tensor_block(
    catalog: Catalog, timeline: int, incarnation: int, frames: Sequence[tuple[int, Frame]]
) -> TensorBlock:
    geometry = catalog.layout(timeline)[1]
    steps = np.array([frame.step for _, frame in frames], dtype=np.int64)
    seqs = np.array([seq for seq, _ in frames], dtype=np.int64)
    missing = _missing(frames, len(geometry.parameters))
    by_name: dict[str, dict[int, Column]] = defaultdict(dict)
    for index, (_, frame) in enumerate(frames):
        for column in frame.columns:
            by_name[column.name][index] = column
    rows: list[TensorRows] = []
    for name, columns in by_name.items():
        chosen = np.array(list(columns), dtype=np.intp)
        absent = missing[chosen] if missing is not None and name not in WITHOUT_GRADIENT else None
        wide = _values(list(columns.values()), len(geometry.parameters))
        for kind, values, flags in _statistic(name, wide, absent, geometry):
            rows.append(
                TensorRows(
                    series=catalog.add_series(timeline, kind, name),
                    kind=kind,
                    step=steps[chosen],
                    seq=seqs[chosen],
                    values=values,
                    flags=flags,
                )
            )
    return TensorBlock(timeline=timeline, incarnation=incarnation, step=steps, rows=tuple(rows))


def _missing(frames: Sequence[tuple[int, Frame]], parameters: int) -> npt.NDArray[np.bool_] | None:
    """Return (frames, parameters), True where a parameter had no gradient; None when all had one."""
    if not any(frame.missing for _, frame in frames):
        return None
    return np.stack([unpack_missing(frame, parameters) for _, frame in frames])


def _values(columns: Sequence[Column], parameters: int) -> npt.NDArray[np.floating]:
    """Return (frames, parameters), float32 unless a column needs float64."""
    if all(column.dtype == "f4" for column in columns):
        joined = b"".join(column.data for column in columns)
        return np.frombuffer(joined, dtype="<f4").reshape(len(columns), parameters)
    return np.stack([unpack_column(column) for column in columns])


def _statistic(
    name: str, wide: npt.NDArray[np.floating], absent: npt.NDArray[np.bool_] | None, geometry: Geometry
) -> list[tuple[str, Floats, Flags | None]]:
    """Return the parameter rows of a statistic and, where it has them, its layer rows."""
    flags: Flags | None = None
    if (absent is not None and absent.any()) or not np.isfinite(wide).all():
        flags = flags_of(wide)
        if absent is not None:
            flags[absent] = 0
    values = wide if wide.dtype == np.float32 else narrow(wide.astype(np.float64))
    if flags is not None:
        values = np.where(flags == 0, np.float32(np.nan), values)
    result: list[tuple[str, Floats, Flags | None]] = [
        (PARAMETER, values.astype(np.float32, copy=False), flags)
    ]
    reduction = REDUCTIONS.get(name)
    if reduction is not None:
        result.append((LAYER, *reduce_layers(reduction, wide, flags, geometry)))
    return result
