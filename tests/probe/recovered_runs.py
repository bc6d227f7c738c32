"""Trainings with a bad step, watched with a recovery or left out by hand; what the recovery tests share."""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from run_numbers import run_of
from small_training import batches
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer

from probe.wire import Event

BAD = 3
STEPS = 6


def plain_model(seed: int = 0) -> nn.Sequential:
    """No dropout: a step that is left out by hand draws no random numbers that another one has drawn."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def everything_of(model: nn.Module, *optimizers: Optimizer) -> dict[str, Any]:
    """Parameters, buffers and the optimizers' state dicts, copied."""
    states = {f"optimizer {i}": one.state_dict() for i, one in enumerate(optimizers)}
    return copy.deepcopy({"model": model.state_dict(), **states})


def assert_identical(one: Any, other: Any, path: str = "") -> None:
    """Compare nested states bit by bit."""
    assert type(one) is type(other), path
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape, path
        assert one.numpy().tobytes() == other.numpy().tobytes(), path
    elif isinstance(one, Mapping):
        assert list(one) == list(other), path
        for key in one:
            assert_identical(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_identical(a, b, f"{path}/{index}")
    else:
        assert one == other, path


def train_with_bad_step(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    leave_out: bool,
    bad: int = BAD,
    steps: int = STEPS,
    micro_steps: int = 1,
    with_closure: bool = False,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Train; the loss of step `bad` is NaN, and its update is left out by hand where `leave_out` says so.

    Args:
        model: trained in place.
        optimizer: of it.
        leave_out: whether the script itself leaves out the update.
        bad: the step.
        steps: how many there are.
        micro_steps: backward passes of each; the loss of the second-last one is the bad one.
        with_closure: pass a closure to `step`.
        after: called after every step, as a scheduler's `step` is.
    """
    for step in range(steps):
        loss = _closure(model, optimizer, step, bad, micro_steps)
        if leave_out and step == bad:
            # The forward and backward are there in both: buffers have to move on.
            loss()
        elif with_closure:
            optimizer.step(loss)  # type: ignore[arg-type]
        else:
            loss()
            optimizer.step()
        after()


def _closure(
    model: nn.Module, optimizer: Optimizer, step: int, bad: int, micro_steps: int
) -> Callable[[], Tensor]:
    given = list(batches((step + 1) * micro_steps))[step * micro_steps :]
    worst = max(micro_steps - 2, 0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for index, (inputs, targets) in enumerate(given):
            loss = F.cross_entropy(model(inputs), targets) / micro_steps
            if step == bad and index == worst:
                loss = loss * math.nan
            loss.backward()
            total += loss.detach()
        return total

    return closure


def recoveries(spool: Path) -> list[Event]:
    """The events of kind `recovery`, each once, in its latest state."""
    return [event for event in run_of(spool).latest_events if event.kind == "recovery"]
