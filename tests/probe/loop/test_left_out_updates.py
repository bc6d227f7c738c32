"""Steps whose update the script leaves out: their gradients are recorded as they were before it clears them.

With `verdict="after_update"`, the way that models on CUDA take, on the CPU and on a stand-in for a device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_stand_in import device_stand_in
from early_arming import early_arming
from run_numbers import column_of, run_of, steps_of
from thinned import thinned
from torch import nn
from torch.nn import functional as F

import probe
from probe.attach.watched_model import is_surely_zero
from probe.loop.training_loop import TrainingLoop

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 36
Left = Callable[[int], bool]


def by_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def by_filling(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


def by_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.zero_grad()


def by_wrapper(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.ModuleList([model]).zero_grad(set_to_none=False)


CLEARINGS = [by_optimizer, by_filling, by_model, by_wrapper]


@pytest.fixture(params=["cpu", "stand-in"])
def _place(request: pytest.FixtureRequest) -> Iterator[None]:
    with device_stand_in() if request.param == "stand-in" else contextlib.nullcontext():
        yield


class Loop:
    """A training whose steps are computed twice over: as recorded, and as they were.

    Args:
        clear: clears the gradients, first thing in each step.
        leaves_out: says of which steps no update is made.
        micro_steps: backwards of a step.
        bad_at: the step whose inputs hold a NaN; its update is left out, too.
    """

    def __init__(
        self,
        clear: Callable[[nn.Module, torch.optim.Optimizer], None],
        leaves_out: Left,
        *,
        micro_steps: int = 1,
        bad_at: int = -1,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.clear, self.leaves_out, self.micro_steps = clear, leaves_out, micro_steps
        self.bad_at, self.scaler = bad_at, scaler
        self.norms: list[list[float]] = []

    def run(self, spool: Path, *, in_c: bool = False, verdict: Any = "after_update") -> Any:
        with (
            early_arming(in_c=in_c),
            probe.watch(self.model, self.optimizer, verdict=verdict, overhead_limit=0.0, spool=spool),
        ):
            for step in range(STEPS):
                self.step(step)
        return run_of(spool)

    def step(self, step: int) -> None:
        self.clear(self.model, self.optimizer)
        for _ in range(self.micro_steps):
            inputs = torch.randn(8, 6)
            if step == self.bad_at:
                inputs[0, 0] = math.nan
            loss = F.cross_entropy(self.model(inputs), inputs[:, :3].nan_to_num().argmax(-1))
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        grads = [parameter.grad for parameter in self.model.parameters()]
        self.norms.append([math.nan if grad is None else float(grad.norm()) for grad in grads])
        if self.leaves_out(step) or step == self.bad_at:
            return
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()


def each_fourth(step: int) -> bool:
    return step % 4 == 2


def each_second(step: int) -> bool:
    return step % 2 == 0 and step > 4


def two_of_three(step: int) -> bool:
    return step % 3 != 2


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(
    ("clear", "leaves_out", "in_c"),
    thinned(CLEARINGS, [each_fourth, two_of_three, each_second], [False, True], every=4),
)
def test_step_without_an_update_has_its_number_and_its_gradients(
    spool: Path, clear: Any, leaves_out: Left, in_c: bool
) -> None:
    loop = Loop(clear, leaves_out)
    run = loop.run(spool, in_c=in_c)
    assert steps_of(run) == [*range(STEPS)]
    for frame, norms in zip(run.frames, loop.norms, strict=True):
        assert not any(frame.missing), frame.step
        np.testing.assert_allclose(column_of(frame, "grad_norm"), norms, rtol=1e-5)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("clear", CLEARINGS)
def test_accumulated_step_without_an_update_has_the_gradients_of_all_its_backwards(
    spool: Path, clear: Any
) -> None:
    loop = Loop(clear, each_fourth, micro_steps=3)
    run = loop.run(spool)
    assert steps_of(run) == [*range(STEPS)]
    for frame, norms in zip(run.frames, loop.norms, strict=True):
        np.testing.assert_allclose(column_of(frame, "grad_norm"), norms, rtol=1e-5)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(("clear", "in_c"), thinned(CLEARINGS, [False, True], every=2))
def test_bad_step_without_an_update_is_replayed_exactly(spool: Path, clear: Any, in_c: bool) -> None:
    loop = Loop(clear, lambda step: False, bad_at=STEPS - 7)
    run = loop.run(spool, in_c=in_c)
    (event,) = [event for event in run.latest_events if event.severity == "critical"]
    assert (event.kind, event.step) == ("nonfinite_loss", STEPS - 7)
    assert "Replay of the step: exact." in event.message
    assert steps_of(run) == [*range(STEPS)]


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("clear", CLEARINGS)
def test_scaled_gradients_without_an_update_are_missing_not_an_explosion(spool: Path, clear: Any) -> None:
    """Nothing tells whether the script has unscaled them."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = Loop(clear, each_fourth, scaler=scaler).run(spool)
    assert steps_of(run) == [*range(STEPS)]
    assert [any(frame.missing) for frame in run.frames] == [each_fourth(step) for step in range(STEPS)]
    assert [event.kind for event in run.latest_events if event.severity != "info"] == []


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("clear", CLEARINGS)
def test_bad_scaled_step_without_an_update_is_replayed(spool: Path, clear: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = Loop(clear, lambda step: False, bad_at=STEPS - 7, scaler=scaler).run(spool)
    (event,) = [event for event in run.latest_events if event.severity == "critical"]
    assert (event.step, "Replay of the step: exact." in event.message) == (STEPS - 7, True), event.message


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("clear", CLEARINGS)
def test_update_that_a_scaler_skips_has_its_gradients_and_one_frame(spool: Path, clear: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loop = Loop(clear, lambda step: False, scaler=scaler)
    backward = loop.step

    def step(number: int) -> None:
        handles = []
        if number == STEPS // 2:
            weight = loop.model[0].weight  # type: ignore[union-attr, index]
            handles.append(weight.register_hook(lambda grad: grad * math.inf))  # type: ignore[union-attr]
        backward(number)
        for handle in handles:
            handle.remove()

    loop.step = step  # type: ignore[method-assign]
    run = loop.run(spool)
    assert steps_of(run) == [*range(STEPS)]
    assert not any(any(frame.missing) for frame in run.frames)


def test_gradients_filled_with_zeros_on_a_device_are_noticed_as_cleared(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting nothing is known of a gradient on a device, but `zero_grad` has told."""
    waited: list[bool] = []

    def is_zero(gradient: torch.Tensor, *, may_wait: bool) -> bool:
        waited.append(may_wait)
        return may_wait and is_surely_zero(gradient, may_wait=True)

    monkeypatch.setattr("probe.attach.watched_model.is_surely_zero", is_zero)
    loop = Loop(by_filling, each_fourth)
    with device_stand_in():
        run = loop.run(spool)
    assert steps_of(run) == [*range(STEPS)]
    # Nine steps are left out, of which each has 4 gradients: no others are waited for.
    assert waited.count(True) == 4 * sum(map(each_fourth, range(STEPS)))


class TwoPasses(Loop):
    """Sharpness-aware minimisation: the first pass moves the weights, and clears the gradients."""

    def first_pass(self) -> None:
        inputs = torch.randn(8, 6)
        F.cross_entropy(self.model(inputs), inputs[:, :3].argmax(-1)).backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter += 1e-3 * parameter.grad


@pytest.mark.parametrize("clear", CLEARINGS)
def test_first_of_two_passes_is_no_step_and_is_not_measured(
    spool: Path, monkeypatch: pytest.MonkeyPatch, clear: Any
) -> None:
    loop, step = TwoPasses(clear, lambda step: False), Loop.step
    seen: list[bool] = []
    look = TrainingLoop.look_before_clearing

    def looked(training: TrainingLoop) -> None:
        look(training)
        seen.append(training.open.cleared is None)

    def both(self: TwoPasses, number: int) -> None:
        if number:  # the optimizer's hooks are known by then
            self.first_pass()
        step(self, number)

    monkeypatch.setattr(TrainingLoop, "look_before_clearing", looked)
    monkeypatch.setattr(TwoPasses, "step", both)
    assert steps_of(loop.run(spool)) == [*range(STEPS)]
    assert len(seen) == STEPS - 1 and all(seen)


def remove_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.usefixtures("_place")
def test_gradients_that_are_taken_away_by_hand_are_missing_not_zero(spool: Path) -> None:
    loop = Loop(remove_by_hand, each_fourth)
    run = loop.run(spool)
    assert steps_of(run) == [*range(STEPS)]
    for frame in run.frames:
        assert any(frame.missing) == each_fourth(frame.step)
        assert ("grad_norm" in frame.scalars) != each_fourth(frame.step)


def test_part_of_the_gradients_that_is_cleared_each_step_keeps_c_following(spool: Path) -> None:
    class Frozen(Loop):
        def step(self, step: int) -> None:
            inputs = torch.randn(8, 6)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(inputs), inputs[:, :3].argmax(-1)).backward()
            self.model[0].zero_grad()  # type: ignore[index, operator]
            self.optimizer.step()

    loop = Frozen(by_optimizer, lambda step: False)
    with early_arming(in_c=True) as followed, probe.watch(loop.model, loop.optimizer, overhead_limit=0.0):
        for step in range(STEPS):
            loop.step(step)
    assert followed.steps > STEPS / 2


def test_clearing_between_the_backward_of_another_model_and_its_update_measures_nothing(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the gradients that pass through a judge on their way to a generator no step is made."""
    torch.manual_seed(0)
    generator, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, judge)]
    with early_arming(in_c=False), probe.watch(judge, optimizers[1], spool=spool, overhead_limit=0.0):
        for _ in range(STEPS):
            optimizers[1].zero_grad()
            made = generator(torch.randn(8, 4))
            (judge(torch.randn(8, 6)).mean() - judge(made.detach()).mean()).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            judge(made).mean().backward()
            optimizers[0].step()
    run = run_of(spool)
    assert steps_of(run) == [*range(STEPS)]
