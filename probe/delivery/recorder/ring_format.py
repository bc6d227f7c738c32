"""The records of a ring, and the metrics records that they become. Pure: bytes in, values out.

A record is u64 checksum, u32 payload length, u32 kind, u64 ring sequence, and the payload, padded with zeros
to a multiple of 8. None wraps: a `PAD` record, which has no sequence number of its own, fills what is left
at the end of the data area; where not even its head has room, nothing is written there.

The recorder's thread, the helper and every reader use the same functions, so that a record becomes the same
metrics record by what takes it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import WireError
from ...wire import MAX_RECORD_BYTES, Column, Frame, decode_record, encode
from ...wire.module_frames import pack_module_columns

PAD: Final = 0
FRAME: Final = 1
"""The payload is an encoded `wire` record."""
RAW: Final = 2
"""The payload is a step as C writes it: `RAW_HEAD`, further scalars, block, missing bitmap, norms of
parameters."""
ADDITION: Final = 3
"""An encoded `Frame` with more of the step of the record before: it is merged into that one."""
UPDATE: Final = 4
"""What C has found of the update of the step of the `RAW` record before: `UPDATE_HEAD`, ratios, missing
bitmap."""
_KINDS: Final = (PAD, FRAME, RAW, ADDITION, UPDATE)
RECORD_HEAD: Final = struct.Struct("<QIIQ")
RAW_HEAD: Final = struct.Struct("<qdqqddddqqq5q")
"""step, time, template, n, loss, loss_raw, total_norm, samples, flags, m, input_elements, reserved."""
UPDATE_HEAD: Final = struct.Struct("<qdqqdq")
"""step, time, template, n, ratio of all, reserved."""
HAS_LOSS: Final = 1
HAS_NORM: Final = 2
HAS_MISSING: Final = 4
HAS_PARAMETER_NORMS: Final = 8
HAS_UPDATE: Final = 16
"""An `UPDATE` record follows, unless the update has raised."""
HAS_COUNTS: Final = 32
"""The block counts NaN and Inf, too: some gradients are not finite."""
RAW_COLUMNS: Final = ("grad_norm", "grad_max_abs", "grad_mean", "grad_std")
COUNT_COLUMNS: Final = ("grad_nan_count", "grad_inf_count")
_CHECK_START: Final = 0x9E3779B97F4A7C15
_WORD: Final = 0xFFFFFFFFFFFFFFFF
_SMALL_WORDS: Final = 1024
_PART_WORDS: Final = 8192
"""A longer record is added up in parts of so many: a pad may be as long as the ring."""
Words = npt.NDArray[np.uint64]


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """What the raw records of equal steps have in common."""

    layout: int
    stage: str
    scalars: list[str]
    """Names of the scalars that follow the head, in their order."""
    has_columns: bool = True
    """Whether the block is written as the frame's columns."""
    member: int = 0
    """Of the frames."""


class RawStep(NamedTuple):
    """A raw record, taken apart; the arrays are views of its payload."""

    step: int
    time: float
    """UNIX seconds."""
    template: int
    loss: float | None
    loss_raw: float | None
    total_norm: float | None
    samples: float
    input_elements: int
    """Of the first input, summed over the micro-steps; 0 when unknown."""
    scalars: npt.NDArray[np.float64]
    """(m,) values of `Template.scalars`; NaN where one is absent."""
    block: npt.NDArray[np.float32]
    """(4, n) in the order of `RAW_COLUMNS`, or (6, n): behind them `COUNT_COLUMNS`."""
    missing: bytes
    """`numpy.packbits` of "has no gradient"; empty when every parameter has one."""
    parameter_norm: npt.NDArray[np.float32] | None
    """(n,) L2 norms of the parameters; None where they were not measured."""
    has_update: bool
    """Whether the record of its update follows."""


class RawUpdate(NamedTuple):
    """An update record, taken apart; arrays as in `measure.UpdateRatios`."""

    step: int
    time: float
    """UNIX seconds."""
    template: int
    total: float | None
    ratios: npt.NDArray[np.float64]
    """(n,)."""
    missing: npt.NDArray[np.bool_]
    """(n,)."""


class RingRecord(NamedTuple):
    """One record, as it lies in the ring."""

    kind: int
    seq: int
    payload: memoryview
    end: int
    """Total bytes up to its end: what the tail becomes once it is taken."""


Press = Callable[[memoryview, Mapping[int, Template]], bytes | None]


def record_bytes(payload_bytes: int) -> int:
    """Return what a record of such a payload takes."""
    return RECORD_HEAD.size + (payload_bytes + 7) // 8 * 8


def raw_bytes(parameters: int, scalars: int) -> int:
    """Return what a raw record of so many parameters takes, with a missing bitmap."""
    return record_bytes(RAW_HEAD.size + 8 * scalars + 16 * parameters + (parameters + 7) // 8)


@cache
def _factors(words: int) -> Words:
    return np.arange(1, 2 * words + 1, 2, dtype=np.uint64)


def checksum(words: Words) -> int:
    """Return the checksum of a record's words from byte 8 on: the sum of (2 i + 1) times the word at i."""
    # As a rule they are few, and 64 KiB of factors are not needed.
    total, factors = _CHECK_START, _factors(_SMALL_WORDS if len(words) <= _SMALL_WORDS else _PART_WORDS)
    for start in range(0, len(words), _PART_WORDS):
        part = words[start : start + _PART_WORDS]
        total += int(part.dot(factors[: len(part)]))
        if start:
            total += 2 * start * int(part.sum())
    return total & _WORD


def records_between(
    data: memoryview, start: int, end: int, *, numbers: Words | None = None
) -> Iterator[RingRecord]:
    """Yield the records of `[start, end)`, total bytes; ends at the first that is torn.

    Args:
        data: the data area.
        start: total bytes up to the first record.
        end: total bytes up to which records were appended.
        numbers: the data area as words, of a file that a killed process left: records are told by their
            checksums. Else they have to follow one another: who writes them knows that each is whole.
    """
    capacity, next_seq = len(data), -1
    while start < end:
        position = start % capacity
        left = capacity - position
        if left < RECORD_HEAD.size:
            start += left
            continue
        check, length, kind, seq = RECORD_HEAD.unpack_from(data, position)
        size = record_bytes(length)
        start += size
        if size > left or start > end:
            return
        if numbers is not None:
            if check != checksum(numbers[(position + 8) // 8 : (position + size) // 8]):
                return
        elif kind not in _KINDS or (kind != PAD and next_seq not in (-1, seq)):
            return
        if kind != PAD:
            next_seq = seq + 1
            at = position + RECORD_HEAD.size
            yield RingRecord(kind, seq, data[at : at + length], start)


def read_template(data: bytes) -> Template | None:
    """Decode a template; None for what is none."""
    try:
        return msgspec.msgpack.decode(data, type=Template)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_raw(payload: bytes | memoryview) -> RawStep:
    """Take a raw record apart.

    Raises:
        WireError: its payload is shorter than its head says.
    """
    if len(payload) < RAW_HEAD.size:
        raise WireError(f"a raw record of {len(payload)} bytes has no head")
    fields = RAW_HEAD.unpack_from(payload)
    step, time, template, count, loss, loss_raw, norm, samples, flags, scalars, elements = fields[:11]
    block_at = RAW_HEAD.size + 8 * scalars
    rows = len(RAW_COLUMNS) + (len(COUNT_COLUMNS) if flags & HAS_COUNTS else 0)
    missing_at = block_at + 4 * rows * count
    missing_bytes = (count + 7) // 8 if flags & HAS_MISSING else 0
    norms_at = missing_at + missing_bytes
    norms_bytes = 4 * count if flags & HAS_PARAMETER_NORMS else 0
    if min(count, scalars) < 0 or norms_at + norms_bytes > len(payload):
        raise WireError(f"a raw record of {len(payload)} bytes cannot hold {count} parameters")
    return RawStep(
        step=step,
        time=time,
        template=template,
        loss=loss if flags & HAS_LOSS else None,
        loss_raw=loss_raw if flags & HAS_LOSS else None,
        total_norm=norm if flags & HAS_NORM else None,
        samples=samples,
        input_elements=elements,
        scalars=np.frombuffer(payload, "<f8", scalars, RAW_HEAD.size),
        block=np.frombuffer(payload, "<f4", rows * count, block_at).reshape(rows, count),
        missing=bytes(payload[missing_at:norms_at]),
        parameter_norm=np.frombuffer(payload, "<f4", count, norms_at) if norms_bytes else None,
        has_update=bool(flags & HAS_UPDATE),
    )


def read_update(payload: bytes | memoryview) -> RawUpdate:
    """Take an update record apart.

    Raises:
        WireError: its payload is shorter than its head says.
    """
    if len(payload) < UPDATE_HEAD.size:
        raise WireError(f"an update record of {len(payload)} bytes has no head")
    step, time, template, count, total, _ = UPDATE_HEAD.unpack_from(payload)
    missing_at = UPDATE_HEAD.size + 8 * count
    if count < 0 or missing_at + (count + 7) // 8 > len(payload):
        raise WireError(f"an update record of {len(payload)} bytes cannot hold {count} parameters")
    bits = np.frombuffer(payload, np.uint8, (count + 7) // 8, missing_at)
    return RawUpdate(
        step=step,
        time=time,
        template=template,
        total=None if total != total else total,
        ratios=np.frombuffer(payload, "<f8", count, UPDATE_HEAD.size).copy(),
        missing=np.unpackbits(bits, count=count).astype(np.bool_),
    )


def raw_scalars(template: Template, raw: RawStep) -> dict[str, float]:
    """Return the further scalars that a raw record has, by name."""
    values = dict(zip(template.scalars, raw.scalars.tolist(), strict=False))
    # What clipping has left may be NaN.
    present = () if math.isnan(values.get("clip_fired", math.nan)) else ("grad_norm_clipped",)
    return {name: value for name, value in values.items() if value == value or name in present}


def frame_of(template: Template, raw: RawStep) -> Frame:
    """Return the frame that `MeasuredStep.build` gives for the same step."""
    scalars: dict[str, float] = {}
    if raw.loss is not None and raw.loss_raw is not None:
        scalars |= {"loss": raw.loss, "loss_raw": raw.loss_raw}
    if raw.total_norm is not None:
        scalars["grad_norm"] = raw.total_norm
    if raw.samples:
        scalars["samples"] = raw.samples
    columns = [
        Column(name=name, dtype="f4", data=row.tobytes())
        for name, row in zip((*RAW_COLUMNS, *COUNT_COLUMNS), raw.block, strict=False)
        if name in RAW_COLUMNS or row.any()
    ]
    if raw.parameter_norm is not None:
        columns.append(Column(name="parameter_norm", dtype="f4", data=raw.parameter_norm.tobytes()))
    return Frame(
        step=raw.step,
        time=raw.time,
        layout=template.layout,
        stage=template.stage,
        scalars=scalars | raw_scalars(template, raw),
        columns=columns if template.has_columns else [],
        missing=raw.missing,
        member=template.member,
    )


def frame_of_update(template: Template, update: RawUpdate) -> Frame:
    """Return the frame that `StepWriter.add_sampled` writes for the same update."""
    return Frame(
        step=update.step,
        time=update.time,
        layout=template.layout,
        scalars={} if update.total is None else {"update_ratio": update.total},
        parameter_columns=pack_module_columns(
            {"update_ratio": update.ratios}, {"update_ratio": update.missing}
        ),
        member=template.member,
    )


def metrics_of(
    records: Iterable[RingRecord], templates: Mapping[int, Template], press: Press | None = None
) -> Iterator[tuple[bytes | None, Sequence[RingRecord]]]:
    """Yield the metrics records that ring records become, each with those that it is made of.

    None instead of a record stands for what cannot become one: it is lost. An addition without its step, or
    to another step, becomes one by itself.

    Args:
        records: of one ring, in their order.
        templates: that raw records among them may name.
        press: a quicker way from a raw record to its encoded frame; it returns None where it knows none.
    """
    group: list[RingRecord] = []
    for record in records:
        if group and record.kind not in (ADDITION, UPDATE):
            yield from _metrics_records(group, templates, press)
            group = []
        group.append(record)
    if group:
        yield from _metrics_records(group, templates, press)


def _metrics_records(
    group: Sequence[RingRecord], templates: Mapping[int, Template], press: Press | None
) -> Iterator[tuple[bytes | None, Sequence[RingRecord]]]:
    """Yield what one step and its additions become."""
    first = group[0]
    if first.kind not in (RAW, UPDATE) and len(group) == 1:
        yield bytes(first.payload), group
        return
    if first.kind == RAW and len(group) == 1 and press is not None:
        pressed = press(first.payload, templates)
        if pressed is not None and len(pressed) <= MAX_RECORD_BYTES:
            yield pressed, group
            return
    frame = _frame(first, templates)
    taken = [first]
    for record in group[1:]:
        addition = _frame(record, templates)
        if frame is not None and addition is not None and _is_of(addition, frame):
            frame = merged(frame, addition)
            taken.append(record)
        else:
            yield _encoded(frame), taken
            frame, taken = addition, [record]
    yield _encoded(frame), taken


def _encoded(frame: Frame | None) -> bytes | None:
    if frame is None:
        return None
    try:
        encoded = encode(frame)
    except (WireError, msgspec.MsgspecError, UnicodeEncodeError):
        return None
    return encoded if len(encoded) <= MAX_RECORD_BYTES else None


def _frame(record: RingRecord, templates: Mapping[int, Template]) -> Frame | None:
    try:
        if record.kind == RAW:
            raw = read_raw(record.payload)
            return frame_of(templates[raw.template], raw)
        if record.kind == UPDATE:
            update = read_update(record.payload)
            return frame_of_update(templates[update.template], update)
        decoded = decode_record(bytes(record.payload))
    except (WireError, KeyError):
        return None
    return decoded if isinstance(decoded, Frame) else None


def merged(frame: Frame, addition: Frame) -> Frame:
    """Return a frame with what was added to its step; the newer value of one name counts."""
    return msgspec.structs.replace(
        frame,
        scalars={**frame.scalars, **addition.scalars},
        columns=addition.columns or frame.columns,
        missing=addition.missing or frame.missing,
        parameter_columns=[
            *(one for one in frame.parameter_columns if one.name not in _names(addition)),
            *addition.parameter_columns,
        ],
        module_columns=addition.module_columns or frame.module_columns,
        module_rows=addition.module_rows or frame.module_rows,
        module_states=addition.module_states or frame.module_states,
    )


def _is_of(addition: Frame, frame: Frame) -> bool:
    return (addition.step, addition.member) == (frame.step, frame.member)


def _names(frame: Frame) -> set[str]:
    return {column.name for column in frame.parameter_columns}
