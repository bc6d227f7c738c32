"""Losses that go back into the model past its outputs (gradient penalties), or that one call of it spoils."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.wire import Event

FAULTY_STEP = 3
KINDS = ("nonfinite_loss", "nonfinite_gradient")

Train = Callable[[nn.Module, torch.optim.Optimizer], None]


class Critic(nn.Module):
    """Two layers, and between them a fault in the derivative, or in the second one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 1)
        self.spoilt = self.is_bent = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if self.spoilt:
            hidden = torch.sqrt(hidden * 0.0)  # MODEL
        if self.is_bent:
            hidden = hidden + (hidden * 0.0).pow(1.5)  # BEND
        return self.second(hidden)


def batch(step: int) -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(step))


def line_of(marker: str) -> int:
    source = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    (line,) = [number for number, text in enumerate(source, 1) if text.endswith(f"# {marker}")]
    return line


def event_of(train: Train, spool: Path) -> Event:
    """The first non-finite event of a loop."""
    model = Critic()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, spool=spool, connect="") as run:
        train(model, optimizer)
        assert run._guard.failures == 0
    (folder,) = spool.iterdir()
    return next(event for event in read_journal(folder).events if event.kind in KINDS)


def penalty(model: nn.Module, samples: Tensor, flat: bool) -> Tensor:
    samples = samples.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(model(samples).sum(), samples, create_graph=True)  # SLOPE
    if flat:
        slope = slope * 0.0
    length = slope.square().sum(-1).sqrt()  # PENALTY
    return (length - 1).square().mean()


def train_with_a_penalty(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x = batch(step)
        loss = model(x).mean() + 10 * penalty(model, x, step == FAULTY_STEP)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_with_a_penalty_after_another_backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x = batch(step)
        optimizer.zero_grad()
        model(x).mean().backward()
        extra = penalty(model, x, step == FAULTY_STEP)
        extra.backward()
        optimizer.step()


def train_with_a_fault_in_the_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x = batch(step)
        model.spoilt = step == FAULTY_STEP  # type: ignore[assignment]
        loss = model(x).mean() + 10 * penalty(model, x, False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_with_a_bad_second_derivative(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x = batch(step)
        model.is_bent = step == FAULTY_STEP  # type: ignore[assignment]
        loss = model(x).mean() + 10 * penalty(model, x, False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("train", [train_with_a_penalty, train_with_a_penalty_after_another_backward])
def test_root_of_a_flat_gradient_in_a_penalty_is_named(train: Train, spool: Path) -> None:
    event = event_of(train, spool)
    assert (event.kind, event.step) == ("nonfinite_gradient", FAULTY_STEP)
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op, event.origin.module) == ("loss", "SqrtBackward0", None)
    assert event.stacks.forward[-1].line == line_of("PENALTY")
    assert [frame.function for frame in event.stacks.forward][-2:] == [train.__name__, "penalty"]


def test_fault_in_the_model_beside_a_penalty_is_named_there(spool: Path) -> None:
    event = event_of(train_with_a_fault_in_the_model, spool)
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op, event.origin.module) == ("backward", "SqrtBackward0", "")
    assert event.stacks.forward[-1].line == line_of("MODEL")
    assert event.stacks.backward[-1].line == line_of("SLOPE")


def test_bad_second_derivative_is_named_where_the_forward_was(spool: Path) -> None:
    event = event_of(train_with_a_bad_second_derivative, spool)
    assert event.kind == "nonfinite_gradient"
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op, event.origin.module) == ("backward", "PowBackward0", "")
    assert event.stacks.forward[-1].line == line_of("BEND")


def test_bad_batch_of_a_penalty_is_told_first(spool: Path) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(FAULTY_STEP + 1):
            x = batch(step)
            if step == FAULTY_STEP:
                x[2, 1] = math.nan
            loss = model(x).mean() + penalty(model, x, False)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    event = event_of(train, spool)
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op) == ("input", "input")


def test_penalty_that_depends_on_a_counter_is_blamed_on_nothing(spool: Path) -> None:
    calls: list[int] = []

    def scale() -> float:
        calls.append(1)
        return math.nan if len(calls) == FAULTY_STEP + 1 else 1.0

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(FAULTY_STEP + 1):
            x = batch(step)
            loss = model(x).mean() + penalty(model, x, False) * scale()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    event = event_of(train, spool)
    assert event.step == FAULTY_STEP
    assert event.origin is None or event.origin.op == "MulBackward0"


# -- one of several calls


class Lattice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emit = nn.Linear(4, 5)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        paths = self.emit(x).masked_fill(~allowed, -math.inf)
        return torch.logsumexp(paths, dim=-1)  # CHOICE


def train_lattice(spool: Path, *, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Event:
    model = Lattice()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    every = torch.ones(6, 5, dtype=torch.bool)
    with probe.watch(model, optimizer, spool=spool, connect=""):
        for step in range(FAULTY_STEP + 1):
            allowed = every.clone()
            allowed[:, 2:] = False
            if step == FAULTY_STEP:
                allowed[4] = False
            loss = loss_of(model(batch(step), every), model(batch(step), allowed))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (folder,) = spool.iterdir()
    return next(event for event in read_journal(folder).events if event.kind in KINDS)


def test_choice_of_nothing_in_the_second_of_two_calls_is_named(spool: Path) -> None:
    event = train_lattice(spool, loss_of=lambda whole, part: (whole - part).mean())
    assert (event.kind, event.step) == ("nonfinite_loss", FAULTY_STEP)
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op, event.origin.module) == ("forward", "logsumexp", "")
    assert event.stacks.forward[-1].line == line_of("CHOICE")


def test_choice_of_nothing_that_the_loss_leaves_out_is_not_blamed_for_its_log(spool: Path) -> None:
    def loss_of(whole: Tensor, part: Tensor) -> Tensor:
        kept = part[torch.isfinite(part)]
        return kept.mean() + torch.log(whole.mean() - 100.0 if len(kept) < 6 else whole.mean().exp())

    event = train_lattice(spool, loss_of=loss_of)
    assert event.kind == "nonfinite_loss"
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op) == ("loss", "log")
