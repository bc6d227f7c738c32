"""Frames that are pressed are the frames that would have been built, to the byte."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.delivery.recorder.frame_mould import FrameMoulds
from probe.delivery.recorder.ring_format import (
    HAS_LOSS,
    HAS_MISSING,
    HAS_NORM,
    HAS_PARAMETER_NORMS,
    HAS_UPDATE,
    RAW,
    RAW_HEAD,
    RingRecord,
    Template,
    frame_of,
    metrics_of,
    read_raw,
)
from probe.wire import encode

NAN = math.nan
TEMPLATE = Template(layout=3, stage="reduced", scalars=["step_time_s", "clip_fired", "lr"])


@dataclass
class Step:
    """What one raw record says."""

    step: int = 7
    loss: float = 0.25
    norm: float = 2.0
    samples: float = 8.0
    scalars: tuple[float, ...] = (0.1, NAN, 1e-3)
    count: int = 3
    flags: int = HAS_LOSS | HAS_NORM
    seed: int = 0
    template: int = 1

    def payload(self) -> memoryview:
        random = np.random.default_rng(self.seed)
        head = RAW_HEAD.pack(
            *(self.step, 1.5 + self.step, self.template, self.count, self.loss, 2 * self.loss, self.norm),
            *(self.samples, self.flags, len(self.scalars), *[0] * 6),
        )
        rows = 4 + bool(self.flags & HAS_PARAMETER_NORMS)
        block = random.lognormal(size=(rows, self.count)).astype("<f4").tobytes()
        if self.flags & HAS_MISSING:
            bitmap = np.packbits(np.arange(self.count) % 2 == 1).tobytes()
            block = block[: 16 * self.count] + bitmap + block[16 * self.count :]
        return memoryview(head + struct.pack(f"<{len(self.scalars)}d", *self.scalars) + block)


def built(payload: memoryview, template: Template = TEMPLATE) -> bytes:
    return encode(frame_of(template, read_raw(payload)))


floats = st.floats(allow_nan=True, allow_infinity=True)
steps = st.builds(
    Step,
    step=st.one_of(st.integers(0, 300), st.integers(0, 2**62)),
    loss=floats,
    norm=floats,
    samples=st.sampled_from([0.0, 1.0, 384.0]),
    scalars=st.tuples(floats, st.sampled_from([NAN, 0.0, 1.0]), floats),
    count=st.sampled_from([0, 1, 3, 40]),
    flags=st.sampled_from(
        [
            HAS_LOSS | HAS_NORM,
            HAS_LOSS,
            HAS_NORM,
            0,
            HAS_LOSS | HAS_NORM | HAS_UPDATE,
            HAS_LOSS | HAS_NORM | HAS_PARAMETER_NORMS,
            HAS_LOSS | HAS_NORM | HAS_MISSING,
            HAS_NORM | HAS_MISSING | HAS_PARAMETER_NORMS,
        ]
    ),
    seed=st.integers(0, 100),
)


@settings(max_examples=300, deadline=None)
@given(records=st.lists(steps, min_size=1, max_size=8), has_columns=st.booleans())
def test_pressed_frames_are_those_that_are_built(records: list[Step], has_columns: bool) -> None:
    template = Template(layout=3, stage="local", scalars=TEMPLATE.scalars, has_columns=has_columns)
    moulds = FrameMoulds()
    for record in records:
        payload = record.payload()
        assert moulds.press(payload, {1: template}) in (None, built(payload, template))


def test_healthy_steps_are_pressed_whatever_their_numbers() -> None:
    moulds = FrameMoulds()
    for step in (0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**40 + 1, 2**40 + 2):
        for flags in (HAS_LOSS | HAS_NORM, HAS_LOSS | HAS_NORM | HAS_PARAMETER_NORMS):
            payload = Step(step=step, loss=0.5 * step, flags=flags, seed=step % 97).payload()
            assert moulds.press(payload, {1: TEMPLATE}) == built(payload)


@pytest.mark.parametrize(
    "other",
    [
        Step(scalars=(0.1, 1.0, 1e-3)),
        Step(scalars=(NAN, NAN, 1e-3)),
        Step(flags=HAS_LOSS | HAS_NORM | HAS_MISSING),
        Step(template=2),
    ],
    ids=["a value more", "a value less", "a gradient missing", "no template"],
)
def test_step_with_other_values_is_left_to_be_built(other: Step) -> None:
    moulds = FrameMoulds()
    assert moulds.press(Step().payload(), {1: TEMPLATE}) is not None
    assert moulds.press(other.payload(), {1: TEMPLATE}) is None


def test_step_whose_numbers_have_no_sum_is_pressed() -> None:
    moulds = FrameMoulds()
    assert moulds.press(Step().payload(), {1: TEMPLATE}) is not None
    payload = Step(scalars=(math.inf, NAN, -math.inf)).payload()
    assert moulds.press(payload, {1: TEMPLATE}) == built(payload)


def test_damaged_record_is_left_to_be_built() -> None:
    moulds = FrameMoulds()
    whole = Step().payload()
    assert moulds.press(whole, {1: TEMPLATE}) is not None
    assert all(moulds.press(whole[:size], {1: TEMPLATE}) is None for size in range(len(whole)))


def test_template_of_another_ring_has_a_mould_of_its_own() -> None:
    moulds = FrameMoulds()
    other = Template(layout=4, stage="clipped", scalars=["lr", "amp_scale", "step_time_s"])
    payload = Step().payload()
    for template in (TEMPLATE, other, TEMPLATE):
        assert moulds.press(payload, {1: template}) == built(payload, template)


def test_scalar_that_has_a_name_twice_is_not_pressed_wrongly() -> None:
    template = Template(layout=3, stage="local", scalars=["loss", "lr", "lr"])
    payload = Step(scalars=(9.0, 1.0, 2.0)).payload()
    assert FrameMoulds().press(payload, {1: template}) in (None, built(payload, template))


def test_moulds_do_not_pile_up() -> None:
    moulds = FrameMoulds()
    for number in range(1, 100):
        payload = Step(template=number).payload()
        template = Template(layout=number, stage="local", scalars=TEMPLATE.scalars)
        assert moulds.press(payload, {number: template}) == built(payload, template)
    assert len(moulds._moulds) <= 16


def test_step_with_an_addition_is_not_pressed() -> None:
    asked = []

    def press(payload: memoryview, templates: object) -> bytes | None:
        asked.append(read_raw(payload).step)
        return b"pressed"

    records = [RingRecord(RAW, at, Step(step=at).payload(), at) for at in range(3)]
    records.insert(1, RingRecord(3, 9, memoryview(built(Step(step=0).payload())), 9))
    made = [data for data, _ in metrics_of(records, {1: TEMPLATE}, press)]
    assert asked == [1, 2] and made[1:] == [b"pressed"] * 2 and made[0] != b"pressed"
