"""Modules that were frozen by mistake, and those that are frozen, or stand still, for good reasons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import nn

import probe
from probe.measure.initial_values import is_as_initialised

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Each = Callable[[int, nn.Sequential], Any]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def train(model: nn.Sequential, *, held: Any = None, each: Each = lambda step, model: None) -> None:
    optimizer = torch.optim.Adam(held or model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer):
        for step in range(40):
            x = torch.randn(16, 12)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), x[:, :5].argmax(1)).backward()
            optimizer.step()
            each(step, model)


def told(spool: Path) -> list[tuple[str, str, int]]:
    found = [event for event in run_of(spool).latest_events if "is frozen" in event.message]
    return [(event.severity, event.subject, event.step) for event in found]


def trained(model: nn.Sequential) -> nn.Sequential:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        x = torch.randn(16, 12)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :5].argmax(1)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("place", [2, 4, 6])
def test_frozen_module_behind_others_is_told(spool: Path, place: int) -> None:
    model = net()
    model[place].requires_grad_(False)
    train(model)
    assert told(spool) == [("warning", str(place), 19)]


def test_frozen_first_modules_are_information(spool: Path) -> None:
    model = net()
    for place in (0, 2):
        model[place].requires_grad_(False)
    train(model)
    assert [severity for severity, _, _ in told(spool)] == ["info"]


def test_frozen_module_that_was_trained_before_is_silent(spool: Path) -> None:
    model = trained(net())
    model[4].requires_grad_(False)
    train(model)
    assert told(spool) == []


def test_frozen_module_that_no_optimizer_holds_is_silent(spool: Path) -> None:
    model = net()
    model[4].requires_grad_(False)
    train(model, held=[p for p in model.parameters() if p.requires_grad])
    assert told(spool) == []


def test_module_that_is_frozen_in_turns_is_silent(spool: Path) -> None:
    model = net()
    model[4].requires_grad_(False)
    train(model, each=lambda step, model: model[4].requires_grad_(step % 5 == 0))
    assert told(spool) == []


def test_average_of_other_weights_is_silent(spool: Path) -> None:
    def average(step: int, model: nn.Sequential) -> None:
        with torch.no_grad():
            model[4].weight.lerp_(model[2].weight, 0.01)

    model = net()
    model[4].requires_grad_(False)
    train(model, each=average)
    assert told(spool) == []


@pytest.mark.parametrize("make", [nn.Linear, lambda i, o: nn.Conv2d(i, o, 3)])
def test_values_of_an_initialisation_are_known(make: Callable[[int, int], nn.Module]) -> None:
    layer = make(16, 24)
    assert is_as_initialised(layer)
    for initialise in (nn.init.xavier_uniform_, nn.init.kaiming_uniform_):
        initialise(layer.weight)
        assert is_as_initialised(layer)
    nn.init.normal_(layer.weight)
    assert not is_as_initialised(layer)
    assert is_as_initialised(nn.LayerNorm(100)) is None
