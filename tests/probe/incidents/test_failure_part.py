"""An exception that left no forward of the model: in which part it was, by which op, and the NaN counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
NAN = float("nan")
X, Y = torch.ones(8, 4), torch.ones(8, 1)
Optimizer = torch.optim.Optimizer


class Broken(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        row = torch.full((4,), NAN)
        return torch.cat([row[None], torch.ones(1, 3)])


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        bad = torch.full((3,), NAN)
        return gradient @ bad


class Critic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        bad = torch.full((3,), NAN)
        return x + bad[:, None]


def weighted(out: Tensor) -> Tensor:
    bad = torch.full((3,), NAN)
    return out.expand(8, 2) * bad


def compute_loss(out: Tensor) -> Tensor:
    return weighted(out).mean()


def in_a_function_of_the_loss(model: nn.Module, opt: Optimizer) -> None:
    compute_loss(model(X))


def in_a_statement_of_the_loss(model: nn.Module, opt: Optimizer) -> None:
    bad = torch.full((3,), NAN)
    loss = (model(X).expand(8, 2) - bad).mean()
    loss.backward()


def in_a_loss_of_torch(model: nn.Module, opt: Optimizer) -> None:
    bad = torch.full((8,), NAN)
    nn.CrossEntropyLoss()(model(X), torch.full((8,), 5) + bad[:0].sum().long())


def in_the_loader(model: nn.Module, opt: Optimizer) -> None:
    for x in DataLoader(Broken(), batch_size=4):
        model(x)


def in_the_step(model: nn.Module, opt: Optimizer) -> None:
    model(X).mean().backward()
    opt.step()
    bad = opt.state[next(model.parameters())]["momentum_buffer"] = torch.full((7,), NAN)
    opt.step()
    assert len(bad)


def in_clipping(model: nn.Module, opt: Optimizer) -> None:
    bad = torch.full((8, 4), NAN)
    model(bad).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


def in_a_scheduler(model: nn.Module, opt: Optimizer) -> None:
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=1)
    bad = torch.full((3,), NAN)
    while len(bad):
        opt.step()
        schedule.step()


def in_a_derivative(model: nn.Module, opt: Optimizer) -> None:
    out: Any = Twice.apply(model(X))  # type: ignore[no-untyped-call]
    out.mean().backward()


def in_another_model(model: nn.Module, opt: Optimizer) -> None:
    Critic()(model(X).detach())


def in_a_function_of_the_script(model: nn.Module, opt: Optimizer) -> None:
    model(X).mean().backward()
    weighted(Y)


def in_plain_python(model: nn.Module, opt: Optimizer) -> None:
    bad = torch.full((3,), NAN)
    {"x": bad}["loss"]


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (in_a_function_of_the_loss, "in the loss, by mul"),
        (in_a_statement_of_the_loss, "in the loss, by sub"),
        (in_a_loss_of_torch, "in the loss, by F.cross_entropy"),
        (in_the_loader, "in the data loader, by torch.cat"),
        (in_the_step, "in optimizer.step, by add_"),
        (in_clipping, "in gradient clipping"),
        (in_a_scheduler, "in the learning rate's scheduler"),
        (in_a_derivative, "in the backward pass, by matmul"),
        (in_another_model, "in the forward of Critic, which is not part of the watched model, by add"),
        (in_a_function_of_the_script, "outside the model, by mul"),
        (in_plain_python, "outside the model"),
    ],
)
def test_part_and_op_are_said_and_nan_counted(
    fails: Callable[[nn.Module, Optimizer], None], words: str, spool: Path
) -> None:
    event = event_of(fails, spool)
    assert f"Raised {words}" in event.message.splitlines(), event.message
    assert next(one.nan for one in event.evidence.tensors if one.name.partition(" ")[0] in ("bad", "row"))
    assert (event.origin is not None) == words.startswith("in the loss")


def event_of(fails: Callable[[nn.Module, Optimizer], None], spool: Path) -> Event:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises((RuntimeError, ValueError, IndexError, KeyError)), probe.watch(model, opt):
        fails(model, opt)
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "exception"]
    return event


def test_error_of_a_worker_is_the_data_loaders(spool: Path) -> None:
    def with_a_worker(model: nn.Module, opt: Optimizer) -> None:
        raise RuntimeError("Caught KeyError in DataLoader worker process 0.\nOriginal Traceback ...")

    assert "Raised in the data loader" in event_of(with_a_worker, spool).message.splitlines()


def test_function_that_gives_a_loss_is_not_the_loss(spool: Path) -> None:
    def train_step(x: Tensor) -> Tensor:
        return F.relu(x).view(3, 3)

    def fails(model: nn.Module, opt: Optimizer) -> None:
        loss = train_step(X)
        loss.backward()

    assert "Raised outside the model, by view" in event_of(fails, spool).message.splitlines()
