"""Trainings that take their gradients by `torch.autograd.grad`, and update by hand."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from run_numbers import norms_of, run_of, scalars_of
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional as F

import probe

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
STEPS = 40
Train = Callable[[nn.Sequential, list[float], list[list[float]]], None]
"""Trains a net; adds every loss, and the norms of every gradient, to the lists."""


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(net: nn.Module, seed: int) -> Tensor:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed))
    return F.mse_loss(net(x), x.sum(1, keepdim=True))


def norms(gradients: list[Tensor] | tuple[Tensor, ...]) -> list[float]:
    return [float(gradient.norm()) for gradient in gradients]


def momentum(net: nn.Sequential, losses: list[float], seen: list[list[float]]) -> None:
    momenta = [torch.zeros_like(parameter) for parameter in net.parameters()]
    for step in range(STEPS):
        loss = loss_of(net, step)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient, own in zip(net.parameters(), gradients, momenta, strict=True):
                own.mul_(0.9).add_(gradient)
                parameter.sub_(0.01 * own)
        losses.append(loss.item())
        seen.append(norms(gradients))


def through_data(net: nn.Sequential, losses: list[float], seen: list[list[float]]) -> None:
    for step in range(STEPS):
        loss = loss_of(net, step)
        gradients = torch.autograd.grad(loss, tuple(net.parameters()))
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.data -= 0.05 * gradient
        losses.append(loss.item())
        seen.append(norms(gradients))


def in_two_parts(net: nn.Sequential, losses: list[float], seen: list[list[float]]) -> None:
    for step in range(STEPS):
        loss = loss_of(net, step)
        first = torch.autograd.grad(loss, list(net[0].parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(net[2].parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), (*first, *second), strict=True):
                parameter -= 0.05 * gradient
        losses.append(loss.item())
        seen.append(norms((*first, *second)))


def assigned(net: nn.Sequential, losses: list[float], seen: list[list[float]]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(STEPS):
        loss = loss_of(net, step)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        losses.append(loss.item())
        seen.append(norms(gradients))


def inner_steps(net: nn.Sequential, losses: list[float], seen: list[list[float]]) -> None:
    """First-order meta-learning: the inner gradients are no steps of the model."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(STEPS):
        total = torch.zeros(())
        for task in range(2):
            inner = loss_of(net, 100 * step + task)
            named = dict(net.named_parameters())
            gradients = torch.autograd.grad(inner, list(named.values()))
            fast = {name: p - 0.05 * g for (name, p), g in zip(named.items(), gradients, strict=True)}
            x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
            total = total + F.mse_loss(functional_call(net, fast, (x,)), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
        seen.append(norms([parameter.grad for parameter in net.parameters() if parameter.grad is not None]))


def penalty(net: nn.Sequential, losses: list[float], seen: list[list[float]]) -> None:
    """A gradient that is differentiated once more belongs to the loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = loss_of(net, step)
        own = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        loss = loss + 0.1 * sum(gradient.square().sum() for gradient in own)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seen.append(norms([parameter.grad for parameter in net.parameters() if parameter.grad is not None]))


TRAININGS: list[Train] = [momentum, through_data, in_two_parts, assigned, inner_steps, penalty]


@pytest.mark.parametrize("train", TRAININGS)
def test_losses_and_gradients_taken_by_grad_are_recorded(train: Train, spool: Path) -> None:
    plain, losses, seen = make_net(), [], []
    train(plain, losses, seen)
    net = make_net()
    with probe.watch(net):
        train(net, [], [])
    run = run_of(spool)
    for own, other in zip(plain.parameters(), net.parameters(), strict=True):
        assert torch.equal(own, other)
    # The update of the last step is seen by what comes after it.
    assert len(run.frames) >= STEPS - 1
    assert scalars_of(run, "loss") == pytest.approx(losses[: len(run.frames)])
    assert np.allclose(norms_of(run), seen[: len(run.frames)], rtol=1e-5)
    assert [event.kind for event in run.latest_events if event.severity != "info"] == []


def test_gradients_without_an_update_are_no_steps(spool: Path) -> None:
    """A Fisher matrix, an influence: more of them than are kept."""
    net = make_net()
    with probe.watch(net):
        for seed in range(100):
            torch.autograd.grad(loss_of(net, seed), list(net.parameters()))
        through_data(net, [], [])
    assert STEPS - 1 <= len(run_of(spool).frames) <= STEPS + 1


NAN = """
import torch, probe

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
with probe.watch(net):
    for step in range(40):
        scale = 0.0 if step == 20 else 1.0
        size = (scale * net(torch.randn(32, 8)).sum()).abs()
        loss = size.log().square()  # the line
        gradients = torch.autograd.grad({asked}, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients):
                parameter -= 1e-4 * gradient
"""


@pytest.mark.parametrize("asked", ["loss", "outputs=loss, inputs=", "loss / 2"])
def test_nan_in_such_a_training_is_named_with_its_line(asked: str, spool: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NAN.format(asked=asked).replace("inputs=, ", "inputs="))
    runpy.run_path(str(script))
    event = next(event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss")
    line = [frame.line for frame in event.stacks.forward if frame.file == str(script)][-1]
    assert event.origin is not None
    assert (event.step, event.origin.op) == (20, "log")
    assert script.read_text().splitlines()[line - 1].endswith("# the line")


def test_training_by_transforms_says_that_it_cannot_be_seen(spool: Path) -> None:
    net = make_net()
    parameters = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}

    def compute(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.mse_loss(functional_call(net, parameters, (x,)), x.sum(1, keepdim=True))

    with probe.watch(net):
        for _ in range(STEPS):
            gradients, _ = grad_and_value(compute)(parameters, torch.randn(32, 8))
            parameters = {name: value - 0.05 * gradients[name] for name, value in parameters.items()}
    (event,) = run_of(spool).latest_events
    assert (event.kind, event.severity, event.subject) == ("data_gap", "info", "steps")
    assert "torch.func" in event.message
    assert "torch.autograd.grad(loss, list(model.parameters()))" in event.advice[0]


def test_transforms_beside_an_ordinary_training_are_no_reason_to_speak(spool: Path) -> None:
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with probe.watch(net):
        for step in range(STEPS):
            grad_and_value(lambda x: x.square().sum())(torch.randn(3))
            loss = loss_of(net, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "data_gap" not in {event.kind for event in run_of(spool).latest_events}
