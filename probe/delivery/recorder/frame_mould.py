"""Encodes the frames of equal steps, which differ in their numbers alone, without building each of them.

A mould is made of one raw record: what stands in its encoded frame between the numbers. With those of another
record it gives the same bytes as `encode(frame_of(...))` does, in a third of the time; a record that has
other values than the first one had is left to these two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from ...errors import WireError
from ...wire import encode
from .ring_format import (
    HAS_COUNTS,
    HAS_LOSS,
    HAS_MISSING,
    HAS_NORM,
    HAS_PARAMETER_NORMS,
    RAW_COLUMNS,
    RAW_HEAD,
    RawStep,
    Template,
    frame_of,
    raw_scalars,
    read_raw,
)

_MOST: Final = 16
_STEP: Final = 2**40 + 1
"""Stands in a frame that is cut into a mould: no other number in it has such bytes."""
_TIME, _LOSS, _LOSS_RAW, _NORM, _SAMPLES = 1, 4, 5, 6, 7
_encode_step: Final = msgspec.msgpack.Encoder().encode


class Mould:
    """What the encoded frames of one template have in common, where the same values are known of each.

    Args:
        template: of the records.
        raw: one of them, in which nothing is missing.
    """

    def __init__(self, template: Template, raw: RawStep) -> None:
        scalars, named = raw.scalars.tolist(), raw_scalars(template, raw)
        self._present = [at for at, name in enumerate(template.scalars) if name in named]
        self._is_known = [value == value for value in scalars]
        self._heads = [_TIME] + [_LOSS, _LOSS_RAW] * (raw.loss is not None)
        self._heads += [_NORM] * (raw.total_norm is not None) + [_SAMPLES] * bool(raw.samples)
        self._scalars = struct.Struct(f"<{len(scalars)}d")
        frame = frame_of(template, _marked(raw))
        numbers = [struct.pack(">d", number) for number in (frame.time, *frame.scalars.values())]
        marks = [_encode_step(_STEP), *numbers, *(column.data for column in frame.columns)]
        self._before_step, *constants, self._end = _between(encode(frame), marks)
        befores = constants[: len(numbers)]
        self._numbers = struct.Struct(">" + "".join(f"{len(before)}sd" for before in befores))
        self._before_numbers: list[bytes | float] = [one for before in befores for one in (before, 0.0)]
        size, first = 4 * raw.block.shape[1], RAW_HEAD.size + self._scalars.size
        rows = [slice(first + size * row, first + size * (row + 1)) for row in range(len(raw.block) + 1)]
        counts, self._counts = rows[len(RAW_COLUMNS) : -1], []
        for row, counted in zip(counts, raw.block[len(RAW_COLUMNS) :], strict=True):
            # The column is left out while every count is zero.
            self._counts.append((row, bool(counted.any())))
        written = [row for row in rows if (row, False) not in self._counts]
        self._rows = list(zip(constants[len(numbers) :], written, strict=False))
        self._bytes = max((row.stop for _, row in self._rows), default=first)

    def press(self, fields: Sequence[float], payload: memoryview) -> bytes | None:
        """Return a record's encoded frame; None where it does not have the values that the first one had.

        Args:
            fields: of its head.
            payload: of the record.
        """
        if len(payload) < self._bytes:
            return None
        scalars = self._scalars.unpack_from(payload, RAW_HEAD.size)
        if [value == value for value in scalars] != self._is_known:
            return None
        if any(any(payload[row]) is not has_some for row, has_some in self._counts):
            return None
        present = [scalars[at] for at in self._present]
        numbers = self._before_numbers.copy()
        numbers[1::2] = [fields[at] for at in self._heads] + present
        parts: list[bytes | memoryview] = [self._before_step, _encode_step(fields[0])]
        parts.append(self._numbers.pack(*numbers))
        for before_row, row in self._rows:
            parts += (before_row, payload[row])
        parts.append(self._end)
        return b"".join(parts)


class FrameMoulds:
    """The moulds of a writer's records, each made of the first record that needs it."""

    def __init__(self) -> None:
        self._moulds: dict[tuple[object, ...], tuple[Template, Mould | None]] = {}

    def press(self, payload: memoryview, templates: Mapping[int, Template]) -> bytes | None:
        """Return the encoded frame of a raw record to whose step nothing is added.

        None where it has to be built: nobody knows its template, it is damaged, or no mould gives the same.
        """
        if len(payload) < RAW_HEAD.size:
            return None
        fields = RAW_HEAD.unpack_from(payload)
        number, count, flags, scalars = fields[2], fields[3], fields[8], fields[9]
        template = templates.get(number)
        if template is None or flags & HAS_MISSING:
            return None
        flags &= HAS_LOSS | HAS_NORM | HAS_PARAMETER_NORMS | HAS_COUNTS
        key = (number, count, flags, scalars, bool(fields[7]))
        known, mould = self._moulds.get(key, (None, None))
        # Another ring gives the same numbers to templates of its own.
        if known is not template:
            if len(self._moulds) >= _MOST:
                self._moulds.clear()
            mould = self._made(template, payload)
            self._moulds[key] = template, mould
        return None if mould is None else mould.press(fields, payload)

    @staticmethod
    def _made(template: Template, payload: memoryview) -> Mould | None:
        """Make a mould, and try it on the record that it is made of."""
        try:
            raw = read_raw(payload)
            mould = Mould(template, raw)
            is_same = mould.press(RAW_HEAD.unpack_from(payload), payload) == encode(frame_of(template, raw))
        except (ValueError, WireError):
            return None
        return mould if is_same else None


def _marked(raw: RawStep) -> RawStep:
    """Return a record of the same values, each a number that is found again in its frame."""
    random = np.random.default_rng(0)
    time, loss, loss_raw, norm, samples = random.uniform(1.0, 2.0, 5).tolist()
    *rows, norms = random.uniform(1.0, 2.0, (len(raw.block) + 1, raw.block.shape[1])).astype("<f4")
    for row, counted in zip(rows[len(RAW_COLUMNS) :], raw.block[len(RAW_COLUMNS) :], strict=True):
        row *= counted.any()
    return raw._replace(
        step=_STEP,
        time=time,
        loss=None if raw.loss is None else loss,
        loss_raw=None if raw.loss_raw is None else loss_raw,
        total_norm=None if raw.total_norm is None else norm,
        samples=samples if raw.samples else 0.0,
        scalars=np.where(np.isnan(raw.scalars), np.nan, random.uniform(1.0, 2.0, len(raw.scalars))),
        block=np.array(rows),
        parameter_norm=None if raw.parameter_norm is None else norms,
    )


def _between(data: bytes, marks: Sequence[bytes]) -> Iterator[bytes]:
    """Yield what stands before each of the marks, which come in this order, and after the last.

    Raises:
        ValueError: one is missing.
    """
    begin = 0
    for mark in marks:
        at = data.index(mark, begin)
        yield data[begin:at]
        begin = at + len(mark)
    yield data[begin:]
