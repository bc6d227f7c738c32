"""Whether gradients are cleared between updates, in loops of every kind."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from probe.attach.layout import describe_model
from probe.attach.watched_model import WatchedModel
from probe.loop.gradient_clearing import ClearingWatch, GradientClearing


def verdicts(clear: Callable[[nn.Module, torch.optim.Optimizer], None], *, micro_steps: int = 1) -> list:
    """What is said after each of four updates of a loop that clears its gradients like this."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clearing, said = GradientClearing(), []
    for _ in range(4):
        clear(model, optimizer)
        for _ in range(micro_steps):
            clearing.before_backward()
            model(torch.randn(4, 3)).square().sum().backward()
            clearing.after_backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        said.append(clearing.after_step(model.parameters()))
    return said


def zero_data(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


CLEARING = {
    "to none": lambda model, optimizer: optimizer.zero_grad(),
    "to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "model": lambda model, optimizer: model.zero_grad(),
    "data": zero_data,
    "decay by intention": decay,
}


@pytest.mark.parametrize("micro_steps", [1, 3])
@pytest.mark.parametrize("name", CLEARING)
def test_clearing_of_every_kind_is_seen(name: str, micro_steps: int) -> None:
    assert verdicts(CLEARING[name], micro_steps=micro_steps) == [None, True, True, True]


@pytest.mark.parametrize("micro_steps", [1, 3])
def test_clearing_that_is_forgotten_is_seen_from_the_second_update_on(micro_steps: int) -> None:
    assert verdicts(lambda model, optimizer: None, micro_steps=micro_steps) == [None, False, False, False]


class Told(list[tuple[int, bool | None, str]]):
    """Takes what a detector is told."""

    def note(self, step: int, *, cleared: bool | None, subject: str) -> None:
        self.append((step, cleared, subject))


def test_clearing_before_the_own_backward_counts_in_a_gan() -> None:
    """The generator's backward leaves gradients in the critic, which are cleared before the critic's own."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = {model: torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic)}
    told = Told()
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    watch = ClearingWatch(WatchedModel(both, describe_model(both), None), told)
    for step in range(3):
        for model in (critic, generator):
            optimizers[model].zero_grad()
            fake = generator(torch.randn(4, 2))
            loss = critic(fake if model is generator else fake.detach()).square().mean()
            watch.before_backward()
            loss.backward()
            watch.after_backward()
            optimizers[model].step()
            watch.after_step(optimizers[model], step)
    assert told == [(step, True, "") for step in (1, 1, 2, 2)]


def test_what_is_not_cleared_is_told_by_name() -> None:
    model, told = nn.Linear(3, 2), Told()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ClearingWatch(WatchedModel(model, describe_model(model), None), told)
    for step in range(3):
        watch.before_backward()
        model(torch.randn(4, 3)).sum().backward()
        watch.after_backward()
        optimizer.step()
        watch.after_step(optimizer, step)
    assert told == [(1, False, "bias"), (2, False, "bias")]


def test_clearing_keeps_no_gradient_alive() -> None:
    model = nn.Linear(3, 2)
    clearing = GradientClearing()
    model(torch.randn(4, 3)).sum().backward()
    clearing.after_step(model.parameters())
    grads = [weakref.ref(parameter.grad) for parameter in model.parameters()]
    model.zero_grad()
    assert [grad() for grad in grads] == [None, None]


def test_clearing_says_nothing_of_an_update_without_backward() -> None:
    model = nn.Linear(3, 2)
    clearing = GradientClearing()
    model(torch.randn(4, 3)).sum().backward()
    assert [clearing.after_step(model.parameters()) for _ in range(2)] == [None, None]
