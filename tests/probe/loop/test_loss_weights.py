"""A term of the loss with the weight 0 excuses gradients of 0 that never were anything else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn

import probe
from probe.loop.loss_weights import has_zero_weight

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.usefixtures("nothing_switched_off")]
STEPS = 40


def terms() -> tuple[Tensor, Tensor]:
    x = torch.arange(4.0, requires_grad=True)
    return x.square().mean(), x.sum()


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a + 0.0 * b,
        lambda a, b: a + b * 0,
        lambda a, b: (a - torch.tensor(0.0) * b) / 4,
        lambda a, b: 0.5 * (a + 1.0 * (b * torch.zeros(1)[0])),
    ],
)
def test_weight_of_0_is_seen(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert has_zero_weight(make(*terms()))


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a + 1e-30 * b,
        lambda a, b: a + torch.zeros((), requires_grad=True) * b,
        lambda a, b: a * (b - b),
        lambda a, b: (torch.zeros(4) * torch.arange(4.0, requires_grad=True)).sum() + a,
        lambda a, b: torch.zeros((), requires_grad=True),
    ],
)
def test_what_is_trained_or_is_no_weight_of_a_term_is_not(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert not has_zero_weight([make(*terms())])


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.main, self.aux = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x).tanh()
        return self.main(hidden), self.aux(hidden)


def train(weighted: Callable[[Tensor, Tensor], Tensor], spool: Path) -> list[str]:
    model = Tasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer):
        for _ in range(STEPS):
            main, aux = model(torch.randn(8, 4))
            optimizer.zero_grad()
            weighted(main.square().mean(), aux.square().mean()).backward()
            optimizer.step()
    events = run_of(spool).latest_events
    return [event.subject for event in events if event.kind == "zero_gradient"]


def test_head_whose_loss_is_switched_off_is_silent(spool: Path) -> None:
    assert train(lambda main, aux: main + 0.0 * aux, spool) == []


def test_head_whose_gradient_is_0_without_such_a_weight_is_told(spool: Path) -> None:
    assert train(lambda main, aux: main + (aux - 1e9).clamp(min=0.0), spool) == ["aux"]
