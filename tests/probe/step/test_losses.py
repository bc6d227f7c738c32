"""`LossMeter`: what is undone of a loss, and what is left as it is."""

import math

import pytest
import torch
from torch import Tensor

from probe.step.losses import LossMeter


def leaf() -> Tensor:
    return torch.full((), 3.0, requires_grad=True) * 1


def value_of(meter: LossMeter, *losses: Tensor) -> float | None:
    for loss in losses:
        meter.add(loss, None)
    value = meter.read().value
    meter.reset()
    return value


@pytest.mark.parametrize(
    "divided",
    [
        lambda loss: loss / 4,
        lambda loss: loss * 0.25,
        lambda loss: torch.tensor(0.25) * loss,
        lambda loss: torch.div(loss, torch.tensor(4.0)),
    ],
)
def test_division_by_the_number_of_micro_steps_is_undone(divided) -> None:  # type: ignore[no-untyped-def]
    assert value_of(LossMeter(), *[divided(leaf()) for _ in range(4)]) == pytest.approx(12)


def test_division_known_from_a_step_before_is_undone_in_a_shorter_one() -> None:
    meter = LossMeter()
    value_of(meter, *[leaf() / 4 for _ in range(4)])
    assert value_of(meter, leaf() / 4, leaf() / 4) == pytest.approx(6)


@pytest.mark.parametrize("factor", [0.0, math.inf, math.nan, -0.5, 2.0])
def test_factor_that_is_no_accumulation_is_kept(factor: float) -> None:
    found = value_of(LossMeter(), leaf() * factor, leaf() * factor)
    assert found == pytest.approx(2 * 3.0 * factor, nan_ok=True)


def test_division_by_something_that_needs_a_gradient_is_kept() -> None:
    assert value_of(LossMeter(), leaf() / leaf(), leaf() / leaf()) == pytest.approx(2)


def test_loss_whose_graph_is_freed_is_taken_without_an_error() -> None:
    loss = leaf() / 2
    loss.backward()
    assert value_of(LossMeter(), loss) == 1.5


def test_scaled_losses_of_a_list_are_unscaled_and_the_scaler_is_noted() -> None:
    meter, losses = LossMeter(), [leaf() / 2, leaf() / 2]
    scaled = [loss * 1024 for loss in losses]
    meter.note_scaling(losses, scaled)
    meter.add(scaled, None)
    assert meter.was_scaled
    assert (meter.read().value, meter.read().raw) == (6.0, 3072.0)


def test_scaler_that_returns_the_loss_itself_scales_nothing() -> None:
    meter, loss = LossMeter(), leaf()
    meter.note_scaling(loss, loss)
    assert value_of(meter, loss) == 3.0
    assert not meter.was_scaled


def test_scalars_are_known_to_be_finite_since_a_backward() -> None:
    meter = LossMeter()
    meter.add(torch.tensor(math.nan), None)
    assert not meter.are_finite(since=0)
    meter.add([torch.tensor(1.0), torch.tensor(2.0)], None)
    assert meter.are_finite(since=1)
    assert not meter.are_finite(since=0)
    meter.add([torch.tensor(math.inf), torch.tensor(2.0)], None)
    assert not meter.are_finite(since=3)
    assert meter.are_finite(since=4)


def test_a_loss_with_a_gradient_of_its_own_is_not_known_to_be_finite() -> None:
    meter = LossMeter()
    meter.add(torch.tensor(math.nan), torch.tensor(1.0))
    assert not meter.are_finite(since=0)


def test_scalars_on_a_device_are_not_known_to_be_finite() -> None:
    meter = LossMeter()
    meter.add(torch.zeros((), device="meta"), None)
    assert not meter.are_finite(since=0)
