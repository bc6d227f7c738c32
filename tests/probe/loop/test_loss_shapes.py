"""Which losses compare all predictions with all targets by accident, and which on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.loop.broadcast_losses import pairs_in_loss

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of (8, 1) predictions and (8,) targets."""
BY_ACCIDENT: dict[str, Loss] = {
    "squares": lambda p, y: (p - y).square().mean(),
    "power, targets first": lambda p, y: ((y - p) ** 2).sum() / 8,
    "product with itself": lambda p, y: 0.5 * ((d := p - y) * d).mean() + 1e-3 * p.square().mean(),
    "mse_loss": lambda p, y: F.mse_loss(p, y),
    "l1_loss of a flat prediction": lambda p, y: F.l1_loss(p.view(-1), y[:, None]),
    "smooth_l1_loss, squeezed": lambda p, y: F.smooth_l1_loss(p.squeeze(-1), y[:, None]),
    "policy gradient": lambda p, y: -(p * y).mean(),
}
ON_PURPOSE: dict[str, Loss] = {
    "equal shapes": lambda p, y: F.mse_loss(p, y[:, None]) + (p.squeeze(-1) - y).abs().mean(),
    "all pairs of predictions": lambda p, y: F.softplus(p - p.squeeze(-1)).mean(),
    "all pairs with detached ones": lambda p, y: (p[:, 0].unsqueeze(1) - p.detach().squeeze(-1)).abs().mean(),
    "seven quantiles": lambda p, y: (p - torch.linspace(0, 1, 7)).abs().mean(),
    "a table of weights": lambda p, y: (p * torch.ones(8, 8)).square().mean(),
    "one weight for all": lambda p, y: (p * y[:1]).mean(),
}


def shapes_of(loss: Loss) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictions = nn.Linear(3, 1)(torch.randn(8, 3))
        return pairs_in_loss(loss(predictions, torch.randn(8)), {8})


@pytest.mark.parametrize("name", BY_ACCIDENT)
def test_broadcast_targets_are_read_from_the_graph(name: str) -> None:
    shapes = shapes_of(BY_ACCIDENT[name])
    assert shapes is not None
    assert shapes[0] in ((8, 1), (8,))
    assert shapes[1] == (8, 8)


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_comparisons_on_purpose_are_none(name: str) -> None:
    assert shapes_of(ON_PURPOSE[name]) is None


def test_table_of_another_size_than_the_batch_is_none() -> None:
    predictions = nn.Linear(3, 1)(torch.randn(8, 3))
    assert pairs_in_loss((predictions - torch.randn(8)).square().mean(), {4}) is None


def regress(spool: Path, *, flat: bool) -> list[tuple[str, str]]:
    """Regress with targets of one dimension or two; return (kind, message) of the warnings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer):
        for _ in range(20):
            x = torch.randn(32, 6)
            y = x[:, 0] if flat else x[:, :1]
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [(e.kind, e.message) for e in run_of(spool).events if e.severity == "warning"]


def test_run_with_broadcast_targets_is_told_so(spool: Path) -> None:
    kind, message = regress(spool, flat=True)[0]
    assert kind == "output_degenerate"
    assert "predictions of shape (32, 1) and targets of shape (32,) are broadcast to (32, 32)" in message


def test_run_with_targets_of_the_right_shape_is_silent(spool: Path) -> None:
    assert regress(spool, flat=False) == []
