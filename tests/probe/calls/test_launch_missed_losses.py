"""A script that trains nothing which an optimizer has: the line at its end says what its losses lead to."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from probe.calls.launch.missed_losses import MissedLosses


def said_of(missed: MissedLosses, loss: Tensor, *holders: nn.Module) -> str | None:
    missed.note([loss], holders, sys._getframe(1))
    return missed.sentence()


def loss_of(model: nn.Module) -> Tensor:
    output: Tensor = model(torch.randn(3, 4))
    return output.sum()


def test_loss_of_an_averaged_copy_names_both_models() -> None:
    net = nn.Linear(4, 2)
    averaged = copy.deepcopy(net)
    assert said_of(MissedLosses(), loss_of(averaged), net) == (
        "nothing is recorded: backward reaches `averaged`, which no optimizer has; "
        "the optimizer's own model, `net`, was never called with gradients on"
    )


def test_model_that_an_object_holds_and_one_that_no_variable_holds() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.student = nn.Linear(4, 2)

        def step(self, missed: MissedLosses, teacher: list[nn.Module]) -> str | None:
            return said_of(missed, loss_of(self.student), *teacher)

    said = Trainer().step(MissedLosses(), [nn.Sequential(nn.Linear(4, 2))])
    assert said is not None
    assert "backward reaches `student`, which no optimizer has" in said
    assert "own model, a `Sequential`, was never called" in said


def test_optimizer_of_plain_tensors_has_no_model() -> None:
    net = nn.Linear(4, 2)
    said = said_of(MissedLosses(), loss_of(net))
    assert said is not None and said.endswith("; no model has the parameters that the optimizer updates")


def test_nothing_is_said_of_losses_that_reach_no_parameter_and_only_a_few_are_looked_at() -> None:
    missed, net = MissedLosses(), nn.Linear(4, 2)
    for _ in range(3):
        assert said_of(missed, torch.ones(2, requires_grad=True).sum(), net) is None
    hidden = SimpleNamespace(net=nn.Linear(4, 2))
    assert said_of(missed, loss_of(hidden.net), net) is None
    assert said_of(missed, loss_of(net), net) is None
