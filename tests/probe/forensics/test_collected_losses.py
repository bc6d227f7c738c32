"""A loss collected over many calls: the op and the operand that made it bad, read from its graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.forensics.loss.loss_factors import find_bad_factor
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
NAN, INF = float("nan"), float("inf")


def call(policy: nn.Module) -> Tensor:
    out: Tensor = torch.log_softmax(policy(torch.randn(1, 4)), -1)[0, 1]
    return out


def returns(policy: nn.Module, bad: bool) -> Tensor:
    saved = [call(policy) for _ in range(6)]
    values = torch.linspace(-1, 1, 6)
    values[3] = NAN if bad else 0.2
    return torch.stack([-log_prob * value for log_prob, value in zip(saved, values, strict=True)]).sum()


def advantages(policy: nn.Module, bad: bool) -> Tensor:
    saved = [call(policy) for _ in range(4)]
    return -(torch.stack(saved) * torch.tensor([1.0, INF if bad else 1.0, 1.0, 1.0])).mean()


def numbers(policy: nn.Module, bad: bool) -> Tensor:
    total = torch.zeros(())
    for number in range(4):
        total = total - call(policy) * (NAN if bad and number == 2 else 0.5)
    return total


def critic(policy: nn.Module, bad: bool) -> Tensor:
    losses = []
    for number in range(4):
        target = torch.tensor(NAN if bad and number == 1 else 1.0)
        losses.append(F.smooth_l1_loss(call(policy), target))
    return torch.stack(losses).sum()


def a_single_call(policy: nn.Module, bad: bool) -> Tensor:
    saved = [call(policy)[None]]
    values = torch.tensor([NAN if bad else 1.0])
    return -(torch.cat(saved) * values).mean()


def divisors(policy: nn.Module, bad: bool) -> Tensor:
    parts = [call(policy) / (0.0 if bad and number == 1 else 1.0) for number in range(4)]
    return torch.stack(parts).sum()


@pytest.mark.parametrize(
    ("loss_of", "op", "counted", "place"),
    [
        (returns, "MulBackward0", "nan", "in number 4 of 6 such operations"),
        (advantages, "MulBackward0", "inf", ""),
        (numbers, "MulBackward0", "nan", "in number 3 of 4 such operations"),
        (critic, "SmoothL1LossBackward0", "nan", "in number 2 of 4 such operations"),
        (a_single_call, "MulBackward0", "nan", ""),
        (divisors, "DivBackward0", "zero", "in number 2 of 4 such operations"),
    ],
)
def test_op_and_value_are_named(
    loss_of: Callable[[nn.Module, bool], Tensor], op: str, counted: str, place: str, tmp_path: Path
) -> None:
    event = event_of(loss_of, tmp_path / "spool")
    assert event.origin is not None, event.message
    assert (event.step, event.origin.phase, event.origin.op) == (4, "loss", op)
    operand = event.evidence.tensors[0]
    assert getattr(operand, counted) == 1 and operand.name.endswith(place)
    assert event.stacks.forward or (event.noticed_at is not None and "Line not known: " in event.message)


def event_of(loss_of: Callable[[nn.Module, bool], Tensor], spool: Path) -> Event:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.SGD(policy.parameters(), lr=0.01)
    with probe.watch(policy, opt, spool=spool, connect="") as run:
        for step in range(5):
            opt.zero_grad()
            loss_of(policy, step == 4).backward()
            opt.step()
        assert run._guard.failures == 0
    (journal,) = spool.iterdir()
    return next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")


def test_factor_that_cannot_have_reached_the_loss_is_not_named() -> None:
    x = torch.ones(2, requires_grad=True)
    dropped = torch.where(torch.tensor([True, True]), (x - 2).log(), x * torch.tensor([NAN, 1.0]))
    divided = (x - 2).log() + x / (x * torch.tensor([INF, INF]))
    chosen = (x * torch.tensor([1.0, NAN]))[0] + (x - 2).log().sum()
    assert [find_bad_factor([loss.sum()]) for loss in (dropped, divided, chosen)] == [None] * 3
