"""What a trainer does between the model's call and backward is not done a second time by a replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn

import probe

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


class Trainer:
    """With two models, as that of a GAN; all that it needs is an attribute of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.critic = nn.Linear(4, 3), nn.Linear(3, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.opt_critic = torch.optim.SGD(self.critic.parameters(), lr=0.1)
        self.parts = 1.0

    def criterion(self, out: Tensor) -> Tensor:
        return out.mean() / self.parts  # FAULT

    def clearing_criterion(self, out: Tensor) -> Tensor:
        self.opt.zero_grad()
        return self.criterion(out)

    def kept(self) -> list[Tensor | None]:
        weights = [*self.model.parameters(), *self.critic.parameters()]
        return [*weights, *(weight.grad for weight in weights)]


def clears_between(trainer: Trainer, x: Tensor) -> None:
    out = trainer.model(x)
    trainer.opt.zero_grad()
    loss = trainer.criterion(out)
    loss.backward()


def clears_in_the_criterion(trainer: Trainer, x: Tensor) -> None:
    out = trainer.model(x)
    loss = trainer.clearing_criterion(out)
    loss.backward()


def updates_a_critic_between(trainer: Trainer, x: Tensor) -> None:
    out = trainer.model(x)
    trainer.opt_critic.zero_grad()
    trainer.critic(out.detach()).mean().backward()
    trainer.opt_critic.step()
    trainer.opt.zero_grad()
    (trainer.criterion(out) + trainer.critic(out).mean()).backward()


def trained(step: Callable[[Trainer, Tensor], None], spool: Path | None) -> Trainer:
    trainer = Trainer()
    if spool is not None:
        run = probe.watch(trainer.model, trainer.opt)
    for number in range(4):
        trainer.parts = 0.0 if number == 3 else 1.0
        step(trainer, torch.randn(8, 4))
        trainer.opt.step()
    if spool is not None:
        run.close()
    return trainer


@pytest.mark.parametrize("step", [clears_between, clears_in_the_criterion, updates_a_critic_between])
def test_gradients_and_weights_are_as_without_a_replay(
    step: Callable[[Trainer, Tensor], None], spool: Path
) -> None:
    plain = trained(step, None)
    watched = trained(step, spool)

    for one, other in zip(watched.kept(), plain.kept(), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.equal(one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))
    event = next(event for event in run_of(spool).events if event.kind == "nonfinite_loss")
    assert event.origin is not None and event.origin.op == "div", event.message
    assert "# FAULT" in event.stacks.forward[-1].code
