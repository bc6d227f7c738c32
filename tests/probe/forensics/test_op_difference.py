"""How far two steps are apart, against numpy and by hand; and the sentences that say it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.forensics.op_diff.op_difference import ROUNDINGS, candidates, finding, measure, sentences
from probe.forensics.op_diff.op_trace import value_of
from probe.forensics.op_diff.trace_records import StepTrace, TracedOp, Value

NAN, INF = math.nan, math.inf


def op(number: int, name: str, tensor: torch.Tensor, *, module: str = "block", reads: str = "") -> TracedOp:
    return TracedOp(
        call=0,
        op=name,
        phase="forward",
        module=module,
        file="/home/ann/model.py",
        line=10 + number,
        function="forward",
        reads=(reads,) if reads else (),
        outputs=(value_of(tensor, key=f"op {number}", name="output 0"),),
    )


def trace(*ops: TracedOp, values: tuple[Value, ...] = ()) -> StepTrace:
    return StepTrace(run="r", step=5, values=values, ops=ops)


def compare(one: StepTrace, other: StepTrace, kept: tuple[dict, dict]) -> tuple[object, list[str]]:
    found = finding(one, other, candidates(one, other), kept)
    return found, list(sentences(found))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_measure_any_floats_agree_with_numpy(pairs: list[tuple[float, float]]) -> None:
    one, other = (np.array(side, dtype=np.float32) for side in zip(*pairs, strict=True))
    distance = measure(torch.from_numpy(one), torch.from_numpy(other))
    wide, narrow = one.astype(np.float64), other.astype(np.float64)
    largest, scale = np.abs(wide - narrow).max(), np.maximum(np.abs(wide), np.abs(narrow)).max()
    assert distance.largest == largest and distance.scale == scale
    if largest and scale * 2.0**-24:
        assert distance.roundings == pytest.approx(largest / (2.0**-24 * scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_measure_of_one_rounding_is_within_and_of_many_is_beyond(dtype: torch.dtype) -> None:
    one = torch.ones(3, dtype=dtype)
    step = torch.finfo(dtype).eps
    assert measure(one, one + step).roundings == pytest.approx(2.0, rel=0.02)
    assert not measure(one, one + step).is_beyond_rounding
    assert measure(one, one + 2 * ROUNDINGS * step).is_beyond_rounding


@pytest.mark.parametrize(
    ("one", "other", "largest", "note"),
    [
        ([1.0, NAN], [1.0, NAN], 0.0, ""),
        ([0.0], [-0.0], 0.0, ""),
        ([1.0, NAN], [1.0, 2.0], INF, "NaN or infinity"),
        ([INF], [-INF], INF, "NaN or infinity"),
        ([INF, 1.0], [INF, 3.0], 2.0, ""),
        ([1.0], [1.0, 2.0], INF, "cannot be laid over"),
        ([], [], 0.0, ""),
    ],
)
def test_measure_of_what_is_not_finite(
    one: list[float], other: list[float], largest: float, note: str
) -> None:
    distance = measure(torch.tensor(one), torch.tensor(other))
    assert distance.largest == largest and note in distance.note


def test_measure_of_integers_has_no_rounding() -> None:
    assert measure(torch.tensor([1, 2]), torch.tensor([1, 3])).roundings == INF
    assert measure(torch.tensor([True]), torch.tensor([True])).largest == 0.0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.ones(2, 3).t(),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.empty(0),
    ],
)
def test_value_of_equal_tensors_is_equal_whatever_their_form(tensor: torch.Tensor) -> None:
    again = value_of(tensor.clone().contiguous(), key="a", name="n")
    assert again.digest and value_of(tensor, key="b", name="n").identity == again.identity
    assert value_of(tensor + 1, key="a", name="n").identity != again.identity or not tensor.numel()


def test_equal_steps_are_said_to_be_equal() -> None:
    one = trace(op(0, "addmm", torch.ones(2)))
    found, said = compare(one, one, ({}, {}))
    assert found.is_equal and said[0] == "Step 5 is the same in both, all 1 ops of it to the last bit."


def test_first_difference_and_the_first_beyond_rounding_are_two() -> None:
    base, slightly = torch.ones(2), torch.ones(2) + 2.0**-23
    one = trace(op(0, "addmm", base), op(1, "mul", base), op(2, "exp", base))
    other = trace(op(0, "addmm", base), op(1, "mul", slightly), op(2, "exp", base * 1.5))
    kept = ({"op 1": base, "op 2": base}, {"op 1": slightly, "op 2": base * 1.5})
    found, said = compare(one, other, kept)
    assert (found.first.one.op, found.beyond.one.op, found.equal_ops) == ("mul", "exp", 1)
    assert "is `mul` in `block`, model.py:11, forward." in said[0] and "no more than sums" in said[1]
    assert any("more than rounding is `exp` in `block`, model.py:12" in line for line in said)


def test_signed_zero_alone_is_no_difference() -> None:
    one, other = torch.tensor([0.0]), torch.tensor([-0.0])
    found, _ = compare(trace(op(0, "mul", one)), trace(op(0, "mul", other)), ({"op 0": one}, {"op 0": other}))
    assert found.first is None and found.is_equal


def test_another_op_ends_the_comparison() -> None:
    one, other = torch.ones(2), torch.zeros(2)
    first, second = (
        trace(op(0, "tanh", one), op(1, "mm", one)),
        trace(op(0, "relu", other), op(1, "mm", other)),
    )
    assert len(candidates(first, second).ops) == 1
    _, said = compare(first, second, ({"op 0": one}, {"op 0": other}))
    assert "  The second run has `relu` in its place (model.py:10)." in said


def test_what_an_op_reads_that_differs_is_named() -> None:
    one, other = torch.ones(2), torch.zeros(2)
    sides = [
        trace(
            op(0, "addmm", tensor, module="", reads="parameter w"),
            values=(value_of(tensor, key="value 0", name="parameter w"),),
        )
        for tensor in (one, other)
    ]
    kept = ({"op 0": one, "value 0": one}, {"op 0": other, "value 0": other})
    found, said = compare(sides[0], sides[1], kept)
    assert found.first.reads == ("parameter w",)
    assert "`addmm` in `the model itself`" in said[0]
    assert "  It reads what is not the same in both: parameter w." in said
    assert said[-1] == "What the step started from differs: parameter w (by up to 1)."


def test_what_only_one_run_has_is_listed() -> None:
    tensor = torch.ones(1)
    one = trace(op(0, "mul", tensor), values=(value_of(tensor, key="value 0", name="parameter w"),))
    found, said = compare(one, trace(op(0, "mul", tensor)), ({}, {}))
    assert not found.is_equal and "In one run alone: parameter w." in said
