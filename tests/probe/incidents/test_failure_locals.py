"""The event of an exception tells the shapes that the script's functions were working on."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch
from run_numbers import run_of
from small_training import seeded_model
from torch import Tensor
from torch.nn import functional as F

import probe
from probe.incidents.failure_locals import Locals, describe_locals
from probe.wire import TensorFacts

pytestmark = pytest.mark.usefixtures("one_thread")


def loss_of(out: Tensor, weights: Tensor) -> Tensor:
    scale, secret = 3, "password"
    return F.cross_entropy(out * scale, torch.zeros(len(out), dtype=torch.int64), weight=weights) + len(
        secret
    )


def locals_of(function: Any, *args: Any) -> Locals:
    try:
        function(*args)
    except RuntimeError:
        trace = sys.exc_info()[2]
        assert isinstance(trace, TracebackType)
        return describe_locals(trace.tb_next)
    raise AssertionError("nothing was raised")


def test_functions_are_named_innermost_first_with_shapes_numbers_and_no_text() -> None:
    def step(pairs: list[Tensor], rows: Any) -> None:
        loss_of(pairs[0], pairs[1])

    pairs = [torch.zeros(8, 2), torch.ones(3, dtype=torch.float64)]
    lines, tensors = locals_of(step, pairs, np.zeros((4, 5), dtype=np.int16))
    inner, outer = lines
    assert inner.startswith("In loss_of (test_failure_locals.py:")
    assert inner.endswith("): out, weights, scale 3")
    assert [(one.role, one.name, one.dtype, one.shape) for one in tensors] == [
        ("local", "out", "float32", [8, 2]),
        ("local", "weights", "float64", [3]),
    ]
    assert outer.endswith("): pairs [float32 (8, 2), float64 (3,)], rows int16 array (4, 5)")


def test_dictionaries_are_named_by_their_keys_and_what_holds_no_tensor_is_not() -> None:
    def step(batch: dict[str, Any]) -> None:
        count = [1, 2]
        raise RuntimeError(len(count))

    batch = {"tokens": torch.zeros(2, 7, dtype=torch.int64), "path": "/home/me"}
    ((line,), tensors) = locals_of(step, batch)
    assert line.endswith("): batch {tokens: int64 (2, 7)}") and tensors == []


def test_tensors_have_statistics_and_the_function_that_holds_them() -> None:
    def inner(out: Tensor) -> None:
        raise RuntimeError(len(out))

    def outer(out: Tensor) -> None:
        inner(out * 2)

    first, second = locals_of(outer, torch.tensor([0.0, 3.0, torch.nan])).tensors
    assert (first.name, first.nan, first.zero, first.finite_max) == ("out", 1, 1, 6.0)
    assert (second.name, second.finite_max, second.device) == ("out in outer", 3.0, "cpu")


def test_values_that_a_failed_device_holds_are_not_read() -> None:
    value = torch.ones(2)
    try:
        raise RuntimeError
    except RuntimeError as error:
        (facts,) = describe_locals(error.__traceback__, with_values=False).tensors
    assert facts == TensorFacts(role="local", name="value", shape=[len(value)], dtype="float32", device="cpu")


def test_variables_of_a_function_that_goes_on_are_not_kept_alive() -> None:
    value = torch.zeros(3)
    try:
        raise RuntimeError
    except RuntimeError as error:
        trace = error.__traceback__
    before = sys.getrefcount(value)
    found = describe_locals(trace)
    assert sys.getrefcount(value) == before
    assert [one.name for one in found.tensors] == ["value"]


def test_event_of_an_exception_has_the_shapes(spool: Path) -> None:
    model = seeded_model()  # without it the run would be over
    with pytest.raises(RuntimeError, match="weight tensor"), probe.watch(model):
        loss_of(torch.zeros(8, 2), torch.ones(3))
    (event,) = run_of(spool).latest_events
    assert "): out, weights, scale 3\n" in event.message
    assert [(one.name, one.shape, one.mean) for one in event.evidence.tensors] == [
        ("out", [8, 2], 0.0),
        ("weights", [3], 1.0),
    ]


def test_odd_variables_cost_no_other_ones_their_line() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: object, **__: object) -> object:
            raise AssertionError("the script's own code was called")

    def failing() -> None:
        huge = 10**5000
        lazy = torch.nn.LazyLinear(2).weight
        loud = torch.ones(2).as_subclass(Loud)
        patients = {"a patient's name": torch.ones(1), "inputs": torch.ones(3)}
        raise KeyError(len((huge, lazy, loud, patients)) and "x")

    try:
        failing()
    except KeyError as error:
        (line, *_), tensors = describe_locals(error.__traceback__)
    assert "lazy not initialised yet" in line
    (loud,) = tensors
    assert (loud.name, loud.shape, loud.mean) == ("loud", [2], None)  # not read: its class may do anything
    assert "patients {inputs: float32 (3,)}" in line
    assert "huge" not in line
    assert "patient's" not in line
