"""Loops of other shapes that C follows: micro-steps, losses of their own, containers, a GradScaler."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from armed_training import ARMED_AT, Planted, Training, watched_training
from both_ways import Act, assert_same
from followed_kinds import (
    Accumulating,
    BesideAnother,
    Change,
    DividedByItems,
    NotScaled,
    OfDictionary,
    OnTwoLines,
    OwnLoss,
    Scaled,
    ScaledAndClipped,
    Single,
    Structured,
    Undivided,
    WithDictionary,
    WithResult,
)
from thinned import thinned
from torch import Tensor

from probe.detectors.base import DetectorThresholds
from probe.forensics.bundle.last_steps import STEPS
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]
KINDS: dict[str, tuple[type[Accumulating], type[Planted]]] = {
    "micro-steps": (Accumulating, Planted),
    "undivided": (Undivided, Planted),
    "divided by items": (DividedByItems, Planted),
    "on two lines": (OnTwoLines, Planted),
    "beside another": (BesideAnother, Planted),
    "own loss": (OwnLoss, Planted),
    "scaled": (Scaled, Planted),
    "scaled and clipped": (ScaledAndClipped, Planted),
    "scaler disabled": (NotScaled, Planted),
    "result": (WithResult, Structured),
    "dictionary": (WithDictionary, OfDictionary),
}


def raise_planted(hidden: Tensor) -> Tensor:
    raise RuntimeError("planted")


def raising(**planted: Any) -> Act:
    def act(training: Training) -> None:
        assert isinstance(training, Accumulating)
        with pytest.raises(RuntimeError, match="planted"):
            training.steps(1, **planted)

    return act


def planted(**planted: Any) -> Act:
    def act(training: Training) -> None:
        assert isinstance(training, Accumulating)
        training.steps(1, **planted)

    return act


def with_hook(hook: Callable[[Tensor], Tensor]) -> Change:
    def change(loss: Tensor) -> Tensor:
        loss.register_hook(hook)  # type: ignore[no-untyped-call]
        return loss * 1

    return change


def bad_backward(hidden: Tensor) -> Tensor:
    hidden.register_hook(raise_planted)  # type: ignore[no-untyped-call]
    return hidden


def infinite_gradient(hidden: Tensor) -> Tensor:
    hidden.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    return hidden


FAULTS: dict[str, Act] = {
    "nothing": lambda training: None,
    "division by zero": planted(fault=lambda hidden: hidden / torch.zeros(()) * 0),
    "root of zero": planted(fault=lambda hidden: hidden + torch.sqrt((hidden * 0).sum())),
    "bad loss": planted(change=lambda loss: loss * math.inf),
    "root in the loss": planted(change=lambda loss: loss + torch.sqrt(loss * 0)),
    "infinite gradient": planted(fault=infinite_gradient),
    "forward raises": raising(fault=raise_planted),
    "backward raises": raising(fault=bad_backward),
    "loss raises": raising(change=raise_planted),
}


IN_ALL = ("root of zero",)
"""After five healthy steps, which are compared, too. The others are planted where several micro-steps are
followed, or a loss of its own, each in one such loop; by `make faults` in all of these, and two of them
elsewhere, too."""
OF_MORE = ("micro-steps", "own loss", "scaled and clipped")


def marks(kind: str, fault: str) -> list[pytest.MarkDecorator] | None:
    """None where a fault is not planted."""
    if fault in IN_ALL or kind == OF_MORE[list(FAULTS).index(fault) % len(OF_MORE)]:
        return []
    is_tried = kind in OF_MORE or fault in ("root in the loss", "backward raises")
    return [pytest.mark.faults] if is_tried else None


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, marks=chosen)
        for kind in KINDS
        for fault in FAULTS
        if (chosen := marks(kind, fault)) is not None
    ],
)
def test_fault_is_recorded_as_in_the_slow_way(tmp_path: Path, kind: str, fault: str) -> None:
    def act(training: Training) -> None:
        training.steps(5)
        FAULTS[fault](training)
        training.steps(3)

    loop, model = KINDS[kind]
    journal = assert_same(tmp_path, act, kind=loop, model=model)
    has_event = fault not in ("nothing", "forward raises", "backward raises", "loss raises")
    assert bool(journal.latest_events) is has_event


def test_bundles_have_the_newest_steps_of_a_training_that_c_has_followed(tmp_path: Path) -> None:
    """The recorder's thread takes them out of the ring while the training thread waits for it."""
    with watched_training(in_c=True, kind=Accumulating, spool=tmp_path) as training:
        training.steps(STEPS)
        FAULTS["root of zero"](training)
        training.steps(3)
    bundles = {}
    for folder in tmp_path.glob("*/bundles/*"):
        event = json.loads((folder / "bundle.json").read_text())["event"]
        bundles[event["step"]] = json.loads((folder / "statistics.json").read_text())
    # The parameters are NaN from there on: what is bad at the next step belongs to this event.
    assert sorted(bundles) == [ARMED_AT + STEPS]
    for step, statistics in bundles.items():
        assert [entry["step"] for entry in statistics] == list(range(step + 1 - STEPS, step + 1))


def fewer_micro_steps(training: Accumulating) -> None:
    training.steps(1, count=2)


def more_micro_steps(training: Accumulating) -> None:
    training.steps(1, count=6)


def gradients_cleared_between(training: Accumulating) -> None:
    training.steps(1, clears=True)


def another_divisor(training: Accumulating) -> None:
    training.steps(1, change=lambda loss: loss / 2)


def log_in_a_hook(training: Accumulating) -> None:
    def tell(hidden: Tensor) -> Tensor:
        hidden.register_hook(lambda _: training.run.log(val_loss=1.0))  # type: ignore[no-untyped-call]
        return hidden

    training.steps(1, fault=tell)


def log_in_the_forward(training: Accumulating) -> None:
    def tell(hidden: Tensor) -> Tensor:
        training.run.log(val_loss=1.0)
        return hidden

    training.steps(1, fault=tell)


def earlier_output_in_a_loss(training: Accumulating) -> None:
    """The second backward comes by the output of the first forward, whose graph is gone."""
    outputs: list[Tensor] = []
    handle = training.model.register_forward_hook(lambda module, args, output: outputs.append(output))
    with pytest.raises(RuntimeError, match="second time"):
        training.steps(1, change=lambda loss: (loss * 4 + outputs[0].sum() * 0) / 4)
    handle.remove()


def earlier_gradient_planted(training: Accumulating) -> None:
    """The gradients are good in all backwards but for what a script adds to one at the end."""
    training.optimizer.zero_grad()
    for _ in range(4):
        training.send_back(training.loss_of(*training.batch()) / 4)
    bias = training.model.first.bias
    assert bias.grad is not None
    bias.grad[3] = math.nan
    training.update()


UNUSUAL: list[Callable[[Accumulating], None]] = [
    fewer_micro_steps,
    more_micro_steps,
    gradients_cleared_between,
    another_divisor,
    log_in_a_hook,
    log_in_the_forward,
    earlier_output_in_a_loss,
    earlier_gradient_planted,
]


@pytest.mark.parametrize("act", UNUSUAL, ids=lambda act: act.__name__)
def test_unusual_micro_steps_are_recorded_as_in_the_slow_way(
    tmp_path: Path, act: Callable[[Accumulating], None]
) -> None:
    def with_steps_around(training: Training) -> None:
        assert isinstance(training, Accumulating)
        training.steps(5)
        act(training)
        training.steps(3)

    assert_same(tmp_path, with_steps_around, kind=Accumulating)


def add_to(training: Training, amount: float, *, clears: bool = True, through_data: bool = False) -> None:
    """Change all parameters; no optimizer tells of it."""
    with torch.no_grad():
        for parameter in training.model.parameters():
            (parameter.data if through_data else parameter).add_(amount)
    if clears:
        training.optimizer.zero_grad()


def two_passes(training: Accumulating) -> None:
    """As sharpness-aware minimisation does it: the first gradients only say where the second are taken."""
    training.before = lambda at: None if at == 0 else add_to(training, 1e-3)
    training.steps(1, count=2)


def two_passes_of_micro_steps(training: Accumulating) -> None:
    training.before = lambda at: None if at != 2 else add_to(training, 1e-3)
    training.steps(1)


def parameters_changed_and_gradients_kept(training: Accumulating) -> None:
    training.before = lambda at: None if at != 1 else add_to(training, 1e-3, clears=False)
    training.steps(1)


def updates_by_hand(training: Accumulating) -> None:
    """Nobody tells of one in a row of steps."""
    training.before = lambda at: None if at == 0 else add_to(training, 1e-3)
    training.steps(1, count=12)


def updates_through_data(training: Accumulating) -> None:
    """Which makes no new version of a parameter."""
    training.before = lambda at: None if at == 0 else add_to(training, 1e-3, through_data=True)
    training.steps(1, count=12)


UNSEEN: list[Callable[[Accumulating], None]] = [
    two_passes,
    two_passes_of_micro_steps,
    parameters_changed_and_gradients_kept,
    updates_by_hand,
    updates_through_data,
]


@pytest.mark.parametrize(("act", "micro_steps"), thinned(UNSEEN, [1, 4], every=2))
def test_update_that_nobody_tells_of_is_noticed_as_in_the_slow_way(
    tmp_path: Path, act: Callable[[Accumulating], None], micro_steps: int
) -> None:
    def with_steps_around(training: Training) -> None:
        assert isinstance(training, Accumulating)
        training.steps(5)
        act(training)
        training.before = lambda at: None
        training.steps(3)

    # Two losses in one step are no spike here: where the loop stood when it was found is the clock's.
    thresholds = DetectorThresholds(loss_spike_factor=1e6)
    kind = Single if micro_steps == 1 else Accumulating
    journal = assert_same(tmp_path, with_steps_around, kind=kind, thresholds=thresholds)
    assert journal.latest_events == []


@pytest.mark.parametrize("kind", KINDS)
def test_most_steps_are_followed(kind: str) -> None:
    loop, model = KINDS[kind]
    with watched_training(in_c=True, kind=loop, model=model) as training:
        followed = 0
        for _ in range(60):
            calls = hot_binding.status().calls
            assert calls is not None
            followed += training.is_followed and calls.state.armed == 1
            training.steps(1)
    assert followed >= 50


class Tokens(Training):
    """The model gets a part of the batch, as one that predicts the next token does."""

    def batch(self) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch()
        return torch.cat([inputs, inputs[:, :1]], 1)[:, :-1], targets


@pytest.mark.parametrize("kind", [Training, Tokens])
def test_inputs_before_a_bad_step_are_those_of_the_steps_before_it(kind: type[Training]) -> None:
    kept = []
    for in_c in (True, False):
        with watched_training(in_c=in_c, kind=kind) as training:
            training.steps(12)
            training.steps(1, lambda loss: loss * float("nan"))
            box = training.run._incidents.black_box  # type: ignore[union-attr]
            kept.append([batch.step for batch in box.before(ARMED_AT + 12)])
    assert kept[0] == kept[1] == list(range(ARMED_AT + 5, ARMED_AT + 12))
