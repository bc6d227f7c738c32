"""Inputs that go into the first layer as they are, and those that only look like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sampled_runs import SampledTraining, find
from torch import Tensor, nn

from probe.detectors.raw_inputs import RawInputDetector

Batch = Callable[[int], Tensor]


class Scaled(nn.Module):
    """Does to its input what a model may do before its first layer."""

    def __init__(self, how: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.how, self.layers = how, nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(self.how(x))
        return y


class Recurrent(nn.Module):
    """A GRU that is given its input as it is, or scaled."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.how, self.cells, self.out = how, nn.GRU(6, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.cells(self.how(x))[0][:, -1])
        return y


class Mixed(nn.Module):
    """Puts the embedding of a category beside numbers."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.how, self.kind, self.out = how, nn.Embedding(4, 3), nn.Linear(9, 1)

    def forward(self, x: Tensor) -> Tensor:
        kind = self.kind((x[:, 0] > x[:, 1]).long())
        y: Tensor = self.out(torch.cat([kind, self.how(x)], 1))
        return y


def sales(step: int) -> Tensor:
    return 40_000 + 9_000 * torch.randn(8, 12, 6)


def incomes(step: int) -> Tensor:
    return torch.rand(32, 6) * 900_000 + 20_000


def prices(step: int) -> Tensor:
    return 15_000 * torch.randn(32, 6)


def images(step: int) -> Tensor:
    return 65_535 * torch.rand(8, 3, 6, 6)


def found(model: nn.Module, batch: Batch) -> list[tuple[int, str]]:
    torch.manual_seed(0)
    training = SampledTraining(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    samples = training.run(lambda step, forward: forward(batch(step)).square().mean() * 1e-6, 10)
    return [(step, finding.message) for step, finding in find(samples, RawInputDetector())]


def head(inputs: int = 6) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 1)


WRONG: dict[str, tuple[Callable[[], nn.Module], Batch, str]] = {
    "incomes": (lambda: nn.Sequential(*head()), incomes, "0"),
    "centred": (lambda: nn.Sequential(*head()), prices, "0"),
    "16-bit pixels": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 1)),
        images,
        "0",
    ),
    "a dropout before": (lambda: nn.Sequential(nn.Dropout(0.1), *head()), incomes, "1"),
    "a recurrent layer": (lambda: Recurrent(lambda x: x), sales, "cells"),
    "beside an embedding": (lambda: Mixed(lambda x: x), incomes, "out"),
    "seconds since 1970": (
        lambda: nn.Sequential(*head()),
        lambda step: 1.6e9 + 5e7 * torch.rand(32, 6),
        "0",
    ),
    "the model is a layer": (lambda: nn.Linear(6, 1), incomes, "the model"),
}
RIGHT: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "pixels to 255": (lambda: nn.Sequential(*head()), lambda step: 255 * torch.rand(32, 6)),
    "a normalisation first": (lambda: nn.Sequential(nn.BatchNorm1d(6), *head()), incomes),
    "a normalisation next": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)),
        incomes,
    ),
    "scaled before a recurrent layer": (lambda: Recurrent(lambda x: (x - 4e4) / 9e3), sales),
    "scaled beside an embedding": (lambda: Mixed(lambda x: x / 1e6), incomes),
    "stand-ins for -Inf": (
        lambda: nn.Sequential(*head()),
        lambda step: torch.randn(32, 6) - 1e9 * (torch.rand(32, 6) < 0.3),
    ),
    "divided": (lambda: Scaled(lambda x: x / 1e6, *head()), incomes),
    "logarithm": (lambda: Scaled(torch.log, *head()), incomes),
    "standardised": (lambda: Scaled(lambda x: (x - 470_000) / 260_000, *head()), incomes),
    "a mask of large numbers": (
        lambda: Scaled(lambda x: torch.sigmoid(x), *head()),
        lambda step: -65_504.0 * (torch.rand(32, 6) < 0.5),
    ),
    "one far outlier": (
        lambda: nn.Sequential(*head()),
        lambda step: torch.randn(32, 6).index_fill(0, torch.tensor([0]), 1.2e4 * (step == 3)),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_raw_input_is_told_once_with_the_layer(name: str) -> None:
    make, batch, layer = WRONG[name]
    torch.manual_seed(0)
    ((step, message),) = found(make(), batch)
    assert step == 1
    assert f"go into {layer} as they are" in message


@pytest.mark.parametrize("name", RIGHT)
def test_input_that_the_model_scales_itself_is_silent(name: str) -> None:
    make, batch = RIGHT[name]
    torch.manual_seed(0)
    assert found(make(), batch) == []
