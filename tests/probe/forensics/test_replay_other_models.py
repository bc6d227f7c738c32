"""A loss that goes through a model of its own, a discriminator: its ruined weights are no fault of an op."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import nn

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def deceive(spool: Path, critic: nn.Module, *, poisoned_at: int | None, scale: float = 1.0) -> Event:
    """Train a generator against a critic, whose weights are NaN from one step on; return the first event."""
    torch.manual_seed(0)
    generator = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    with probe.watch(generator, optimizer):
        for step in range(4):
            if step == poisoned_at:
                with torch.no_grad():
                    next(critic.parameters()).fill_(torch.nan)
            fake = generator(torch.randn(6, 4))
            loss = -critic(fake * scale**step).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return next(event for event in run_of(spool).events if event.kind == "nonfinite_loss")


def test_weights_of_a_critic_that_were_ruined_before_are_blamed_on_no_op(spool: Path) -> None:
    critic = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    event = deceive(spool, critic, poisoned_at=2)
    assert event.step == 2 and event.origin is None
    assert (
        "the parameter critic.0.weight of another model in the loss was already non-finite" in event.message
    )


class Root(nn.Module):
    """With weights, so that it is a model, and with a fault of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.scale * x.abs() + 1.0)  # the planted line


def test_fault_inside_of_a_sound_critic_is_still_named(spool: Path) -> None:
    event = deceive(spool, Root(), poisoned_at=None, scale=100.0)
    assert event.origin is not None and event.origin.op == "exp"
    assert "# the planted line" in event.stacks.forward[-1].code
