"""The launcher's look at closures leaves torch's table of hooks alone once it is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks as table  # type: ignore[attr-defined]

from probe.calls.launch.closures import FirstClosures


class Asked:
    """Begins no session."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []

    def before_closure(self, optimizer: Optimizer) -> bool:
        self.optimizers.append(optimizer)
        return False


@pytest.fixture(autouse=True)
def without_ours_afterwards() -> Iterator[None]:
    before = dict(table)
    yield
    for key in table.keys() - before.keys():
        del table[key]


class Called(torch.optim.SGD):
    """Calls its closure with arguments, as some optimizers do."""

    def step(self, closure: object = None) -> object:
        assert callable(closure)
        return closure(scale=3.0)


def loss_of(scale: float = 1.0) -> Tensor:
    return torch.tensor(2.0 * scale)


def test_table_that_another_thread_may_be_going_through_changes_once() -> None:
    closures = FirstClosures(Asked())
    closures.begin()
    entries = dict(table)
    closures.end()
    closures.begin()
    closures.end()
    assert dict(table) == entries


def test_closure_is_asked_of_while_it_is_on_and_gets_what_it_is_called_with() -> None:
    asked = Asked()
    closures, optimizer = FirstClosures(asked), Called(nn.Linear(2, 2).parameters(), lr=0.1)
    closures.begin()
    assert float(optimizer.step(loss_of)) == 6.0  # type: ignore[arg-type]
    closures.end()
    assert float(optimizer.step(loss_of)) == 6.0  # type: ignore[arg-type]
    assert asked.optimizers == [optimizer]
