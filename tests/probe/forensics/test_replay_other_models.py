"""A loss that goes through a model of its own, a discriminator: its ruined weights are no fault of an op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn

import probe
from probe.forensics.loss.loss_origin import NOT_KEPT
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
        "the parameter `critic.0.weight` of another model in the loss was already non-finite" in event.message
    )


def distil(spool: Path, loss_of: Callable[[Tensor, nn.Module, Tensor], Tensor]) -> Event:
    """Train a student on a teacher whose running variance is NaN from one step on; return the first event."""
    torch.manual_seed(0)
    student, teacher = nn.Linear(4, 3), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with probe.watch(student, optimizer):
        for step in range(4):
            if step == 2:
                teacher[0].running_var[1] = torch.nan
            x = torch.randn(6, 4)
            target = teacher(x)
            out = student(x)
            loss = loss_of(out, teacher, target if loss_of is not asked_again else x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return next(event for event in run_of(spool).events if event.kind == "nonfinite_loss")


def computed_before(out: Tensor, teacher: nn.Module, target: Tensor) -> Tensor:
    return (out - target.detach()).square().mean()


def asked_again(out: Tensor, teacher: nn.Module, x: Tensor) -> Tensor:
    return (out - teacher(x)).square().mean()


@pytest.mark.parametrize(
    ("loss_of", "reason"),
    [
        (computed_before, "`target`, which was computed before the lines that make the loss,"),
        (asked_again, "the buffer `teacher.0.running_var` of another model in the loss"),
    ],
)
def test_what_another_model_made_bad_is_blamed_on_no_op(
    loss_of: Callable[[Tensor, nn.Module, Tensor], Tensor], reason: str, spool: Path
) -> None:
    event = distil(spool, loss_of)
    assert event.step == 2 and event.origin is None, event.message
    assert f"{reason} was already non-finite" in event.message


def towards(spool: Path, loss_of: Callable[[Tensor, dict[str, Tensor]], Tensor]) -> str:
    """Train towards a goal that is NaN at one step; return the first line of the first event."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for step in range(4):
            batch = {"goal": torch.full((6, 3), torch.nan if step == 2 else 0.5)}
            out = model(torch.randn(6, 4))
            loss = loss_of(out, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    event = next(event for event in run_of(spool).events if event.kind == "nonfinite_loss")
    return event.message.splitlines()[0]


def of_a_batch(out: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (out - batch["goal"]).square().mean()


def of_an_iterator(out: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return sum(((out - goal).square().mean() for goal in drained(batch)), start=torch.zeros(()))


def drained(batch: dict[str, Tensor]) -> Iterator[Tensor]:
    while batch:
        yield batch.popitem()[1]


@pytest.mark.parametrize(
    ("loss_of", "what"),
    [
        (of_a_batch, "(sub): batch['goal'] was already non-finite"),
        (
            of_an_iterator,
            f"(SubBackward0): {NOT_KEPT}",
        ),
    ],
)
def test_bad_target_comes_in_and_is_named(
    loss_of: Callable[[Tensor, dict[str, Tensor]], Tensor], what: str, spool: Path
) -> None:
    first = towards(spool, loss_of)
    assert first.startswith("NaN came in at step 2 in the loss"), first
    assert first.endswith(what)


@pytest.mark.parametrize("is_data", [False, True])
def test_what_a_ruined_generator_gives_its_critic_is_no_bad_input(is_data: bool, spool: Path) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    with probe.watch(critic, optimizer):
        for step in range(4):
            if step == 2:
                generator.bias.data[0] = torch.nan
            fake = generator(torch.randn(6, 4))
            given = torch.full((6, 3), torch.nan if step == 2 else 0.5) if is_data else fake.detach()
            optimizer.zero_grad()
            critic(given).mean().backward()
            optimizer.step()
    event = next(event for event in run_of(spool).events if event.kind == "nonfinite_loss")
    assert (event.origin is not None) == is_data, event.message
    assert ("computed before that forward" in event.message) != is_data


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
