"""Steps that measure what modules return stay in C, and record what the slow way does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from armed_training import ARMED_AT, Planted, Training, calls_state, watched_training
from both_ways import Act, assert_same, recorded
from followed_kinds import Accumulating, ScaledAndClipped
from torch import Tensor, nn
from torch.nn import functional as F

from probe.attach.observation.module_calls import module_calls
from probe.loop.measure_schedule import MeasureSchedule
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]
OBSERVED = 100
PLAIN = nn.Module.__dict__["__call__"], nn.Module.__dict__["_call_impl"]


def to_the_observed_step(training: Training) -> None:
    training.steps(OBSERVED - ARMED_AT)


def test_it_is_followed_and_recorded_as_in_the_slow_way(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        to_the_observed_step(training)
        for _ in range(8):
            was_followed = training.is_followed
            training.steps(25)
            assert training.is_followed is was_followed

    journal = assert_same(tmp_path, act)
    observed = {frame.step: frame for frame in journal.frames if frame.module_columns}
    assert {OBSERVED, 2 * OBSERVED} <= observed.keys()
    # One frame has all: what modules returned, the gradients, and what the update did.
    assert observed[2 * OBSERVED].columns and observed[2 * OBSERVED].parameter_columns


def test_none_is_left_out_and_c_stays(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        before = calls_state().steps
        training.steps(300)
        assert calls_state().steps == before + 300

    journal, _ = recorded(tmp_path, act, in_c=True)
    assert [frame.step for frame in journal.frames if frame.module_columns and frame.step >= ARMED_AT] == [
        *range(OBSERVED, ARMED_AT + 300, 100)
    ]


@pytest.mark.parametrize("kind", [Accumulating, ScaledAndClipped])
def test_micro_steps_are_observed_together(tmp_path: Path, kind: type[Training]) -> None:
    journal = assert_same(tmp_path, lambda training: training.steps(OBSERVED - ARMED_AT + 5), kind=kind)
    frame = next(frame for frame in journal.frames if frame.step == OBSERVED)
    assert frame.module_columns and frame.columns


def with_fault(fault: Callable[[Tensor], Tensor]) -> Act:
    def act(training: Training) -> None:
        training.model.fault = fault
        training.step()
        training.steps(3)

    return act


def raises(hidden: Tensor) -> Tensor:
    raise RuntimeError("planted")


def forward_raises(training: Training) -> None:
    training.model.fault = raises
    with pytest.raises(RuntimeError, match="planted"):
        training.step()
    training.steps(3)


def backward_raises(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)
    output.register_hook(raises)
    with pytest.raises(RuntimeError, match="planted"):
        F.cross_entropy(output, targets).backward()
    training.steps(3)


def loss_is_infinite(training: Training) -> None:
    training.step(lambda loss: loss * math.inf)
    training.steps(3)


def gradient_is_infinite(training: Training) -> None:
    def spoil(hidden: Tensor) -> Tensor:
        hidden.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
        return hidden

    with_fault(spoil)(training)


def forward_is_left_alone(training: Training) -> None:
    training.model(training.batch()[0])
    training.steps(3)


def part_is_called_before(training: Training) -> None:
    training.model.first(training.batch()[0])
    training.steps(3)


def part_is_called_in_the_step(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)
    training.model.first(inputs)
    F.cross_entropy(output, targets).backward()
    training.optimizer.step()
    training.steps(3)


def evaluation_in_the_step(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)
    with torch.no_grad():
        training.model(inputs)
    F.cross_entropy(output, targets).backward()
    training.optimizer.step()
    training.steps(3)


def output_is_a_dictionary(training: Training) -> None:
    forward = training.model.forward
    training.model.forward = lambda inputs: {"scores": forward(inputs)}  # type: ignore[method-assign]
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    F.cross_entropy(training.model(inputs)["scores"], targets).backward()
    training.optimizer.step()
    training.model.forward = forward  # type: ignore[method-assign]
    training.steps(3)


def value_is_logged_in_the_forward(training: Training) -> None:
    """Which has C stop in the middle of it."""

    def tell(hidden: Tensor) -> Tensor:
        training.run.log(val_loss=1.0)
        return hidden

    with_fault(tell)(training)


def layer_is_replaced(training: Training) -> None:
    training.model.second = nn.Sequential(nn.Linear(30, 5))
    training.optimizer.add_param_group({"params": [*training.model.second.parameters()]})
    training.steps(130)


UNUSUAL: list[Act] = [
    with_fault(lambda hidden: hidden / torch.zeros(()) * 0),
    forward_raises,
    backward_raises,
    loss_is_infinite,
    gradient_is_infinite,
    forward_is_left_alone,
    part_is_called_before,
    part_is_called_in_the_step,
    evaluation_in_the_step,
    output_is_a_dictionary,
    value_is_logged_in_the_forward,
    layer_is_replaced,
]


@pytest.mark.parametrize("act", UNUSUAL, ids=lambda act: act.__name__)
def test_observed_step_that_goes_on_in_the_slow_way_records_the_same(tmp_path: Path, act: Act) -> None:
    def observed_step(training: Training) -> None:
        to_the_observed_step(training)
        torch.manual_seed(3)
        act(training)

    assert_same(tmp_path, observed_step)
    assert (nn.Module.__dict__["__call__"], nn.Module.__dict__["_call_impl"]) == PLAIN
    assert not module_calls.is_installed


def test_what_the_budget_changes_is_followed_from_the_next_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """C has learned the periods: where they change, it has to learn anew."""
    asked: list[int] = []

    def account(self: MeasureSchedule, steps: int, **_: int) -> bool:
        asked.append(steps)
        return True

    with watched_training(in_c=True) as training:
        monkeypatch.setattr(MeasureSchedule, "account_followed", account)
        to_the_observed_step(training)
        followed = int(calls_state().steps)
        training.steps(1)
        assert asked == [followed] and training.is_followed
        training.steps(1)
        assert calls_state().steps == 0
        # The step that was observed, and nothing twice.
        assert asked == [followed, 1]


def test_nothing_stays_on_the_modules_class_where_c_is_left_in_the_middle() -> None:
    with watched_training(in_c=True) as training:
        to_the_observed_step(training)
        during = []

        def look(hidden: Tensor) -> Tensor:
            during.append(module_calls.is_installed)
            training.run.close()
            return hidden

        training.model.fault = look
        training.step()
        assert during == [True] and not module_calls.is_installed
    assert isinstance(training.model, Planted)
