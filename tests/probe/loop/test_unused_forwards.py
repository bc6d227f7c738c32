"""Losses that a script leaves out, for ever or once, and what a bad batch leaves in a model's buffers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.detectors.scaler import CRITICAL_AFTER, WARN_AFTER
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
BAD_FROM = 5
Loss = Callable[[nn.Module, Tensor, bool], Tensor]


def train(spool: Path, loss_of: Loss, is_bad: Callable[[int], bool], *, steps: int = 80) -> list[Event]:
    """Train, and leave out each loss that is not finite; return the events at warning or above."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with probe.watch(model, optimizer):
        for step in range(steps):
            loss = loss_of(model, torch.randn(4, 6), is_bad(step))
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [event for event in run_of(spool).latest_events if event.severity != "info"]


def from_that_step_on(step: int) -> bool:
    return step >= BAD_FROM


def bad_weight(model: nn.Module, x: Tensor, is_bad: bool) -> Tensor:
    if is_bad:
        model[2].bias.data.fill_(torch.nan)  # type: ignore[index]
    return F.cross_entropy(model(x), x[:, :3].argmax(1))


def bad_target(model: nn.Module, x: Tensor, is_bad: bool) -> Tensor:
    return (model(x) - (torch.inf if is_bad else 1.0)).pow(2).mean()


def bad_batch(model: nn.Module, x: Tensor, is_bad: bool) -> Tensor:
    if is_bad:
        x[1, 1] = torch.inf
    return F.cross_entropy(model(x), x[:, 3:].argmax(1))


def test_losses_that_are_left_out_for_ever_are_said_with_what_is_bad_in_the_model(spool: Path) -> None:
    (event,) = train(spool, bad_weight, from_that_step_on)
    assert (event.kind, event.severity, event.step) == ("nonfinite_loss", "critical", BAD_FROM)
    assert f"The last {CRITICAL_AFTER} losses were not finite" in event.message
    assert (
        "nothing has been trained since step 5. The cause is in the model: `2.bias` holds NaN"
        in event.message
    )
    assert event.noticed_at is not None
    assert event.noticed_at.function == "bad_weight"


def test_loss_that_is_bad_though_the_outputs_are_not_is_found_in_the_variables_of_the_loop(
    spool: Path,
) -> None:
    (event,) = train(spool, bad_target, from_that_step_on, steps=BAD_FROM + 30)
    assert (event.kind, event.severity, event.step) == ("nonfinite_loss", "warning", BAD_FROM)
    assert f"The last {WARN_AFTER} losses" in event.message
    assert "All parameters and buffers of the model are finite" in event.message


def test_one_batch_that_is_left_out_has_ruined_the_running_statistics(spool: Path) -> None:
    (event,) = train(spool, bad_batch, lambda step: step == BAD_FROM)
    assert (event.kind, event.severity) == ("nonfinite_parameter", "critical")
    assert (event.step, event.subject) == (BAD_FROM, "1.running_mean")
    assert event.message.startswith("The running mean and variance of `1` are not finite at step 5")
    assert event.propagated_to == ["1.running_mean", "1.running_var"]


@pytest.mark.parametrize(
    "is_bad",
    [lambda step: step % 2 == 1, lambda step: step % 12 > 12 - WARN_AFTER],
    ids=["every other", "nine in a row"],
)
def test_bad_losses_between_good_ones_are_no_fault(spool: Path, is_bad: Callable[[int], bool]) -> None:
    assert train(spool, bad_target, is_bad, steps=120) == []


def test_forwards_without_a_backward_that_are_finite_are_no_fault(spool: Path) -> None:
    def with_dry_runs(model: nn.Module, x: Tensor, is_bad: bool) -> Tensor:
        for _ in range(30):
            model(x).masked_fill(torch.tensor([True, False, False]), -torch.inf)
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    assert train(spool, with_dry_runs, from_that_step_on, steps=15) == []


def test_evaluation_that_is_not_finite_has_the_buffers_looked_at(spool: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with probe.watch(model, optimizer):
        for step in range(6):
            F.mse_loss(model(torch.randn(4, 6)), torch.zeros(4, 3)).backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.full((4, 6), torch.nan if step == 3 else 0.0))
                F.mse_loss(model.eval()(torch.ones(4, 6)), torch.zeros(4, 3))
            model.train()
    events = {(one.kind, one.subject, one.severity) for one in run_of(spool).latest_events}
    assert ("nonfinite_parameter", "1.running_mean", "critical") in events
    assert ("nonfinite_loss", "val_loss", "warning") in events
