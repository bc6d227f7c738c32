"""First losses that only weights of a senseless size explain, and high ones that have other reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from sampled_runs import plain
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.detectors.first_loss import FirstLossDetector, Guess
from probe.loop.guessed_losses import guess_of

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of (16, 5) scores and (16,) classes."""
KNOWN: dict[str, tuple[Loss, str, float]] = {
    "cross_entropy": (F.cross_entropy, "cross_entropy", math.log(5)),
    "averaged by hand": (
        lambda x, y: F.cross_entropy(x, y, reduction="none").mean(),
        "cross_entropy",
        math.log(5),
    ),
    "accumulated": (lambda x, y: F.cross_entropy(x, y) / 4, "cross_entropy", math.log(5)),
    "scaled": (lambda x, y: F.cross_entropy(x, y) * torch.tensor(65536.0), "cross_entropy", math.log(5)),
    "two answers": (
        lambda x, y: F.binary_cross_entropy_with_logits(x[:, 0], (y > 2).float()),
        "binary_cross_entropy_with_logits",
        math.log(2),
    ),
    "squares": (lambda x, y: F.mse_loss(x, torch.full_like(x, 3.0)), "mse_loss", 9.0),
}
UNKNOWN: dict[str, Loss] = {
    "a sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "a weight of the script's": lambda x, y: 100 * F.cross_entropy(x, y),
    "class weights": lambda x, y: F.cross_entropy(x, y, weight=torch.rand(5)),
    "two terms": lambda x, y: F.cross_entropy(x, y) + x.square().mean(),
    "a sum of squares": lambda x, y: F.mse_loss(x, torch.zeros_like(x), reduction="sum"),
    "likelihoods of its own": lambda x, y: F.nll_loss(x, y),
    "no function of torch": lambda x, y: (x - 3).square().mean(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_guess_of_a_loss_function_is_read_from_its_graph(name: str) -> None:
    loss, function, value = KNOWN[name]
    guess = guess_of(loss(torch.randn(16, 5, requires_grad=True), torch.arange(16) % 5))
    assert guess is not None
    assert (guess.function, guess.loss) == (function, pytest.approx(value))


@pytest.mark.parametrize("name", UNKNOWN)
def test_guess_of_another_loss_is_not_known(name: str) -> None:
    scores = torch.randn(16, 5, requires_grad=True)
    assert guess_of(UNKNOWN[name](scores, torch.arange(16) % 5)) is None


def net(std: float | None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    for parameter in model.parameters() if std is not None else ():
        nn.init.normal_(parameter, std=std or 0.0)
    return model


def events(spool: Path, model: nn.Module, loss: Loss, *, scale: float = 1.0, rate: float = 1e-3) -> list[Any]:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with probe.watch(model, optimizer):
        for _ in range(30):
            x = torch.randn(16, 20)
            optimizer.zero_grad()
            loss(model(x) * scale, x[:, :5].argmax(1)).backward()
            optimizer.step()
    return [event for event in run_of(spool).latest_events if event.subject == "loss"]


@pytest.mark.parametrize("loss", ["cross_entropy", "two answers", "averaged by hand", "squares"])
def test_weights_of_deviation_10_are_told_by_the_first_losses(spool: Path, loss: str) -> None:
    (event,) = events(spool, net(10.0), KNOWN[loss][0])
    assert (event.kind, event.severity, event.step) == ("poor_initialization", "warning", 1)
    assert f"of {KNOWN[loss][1]} where" in event.message


@pytest.mark.parametrize("name", ["cross_entropy", "two answers", "squares", *UNKNOWN])
def test_usual_weights_are_silent(spool: Path, name: str) -> None:
    loss = KNOWN[name][0] if name in KNOWN else UNKNOWN[name]
    assert [
        event.kind for event in events(spool, net(None), loss) if event.kind == "poor_initialization"
    ] == []


def test_scores_of_a_scale_of_64_are_silent(spool: Path) -> None:
    assert events(spool, net(None), lambda x, y: F.cross_entropy(64 * (x / 2).tanh(), y)) == []


@pytest.mark.parametrize("size", [1e-4, 1e5])
def test_targets_of_any_size_are_silent(spool: Path, size: float) -> None:
    found = events(spool, net(None), lambda x, y: F.mse_loss(x, size * y[:, None].float().expand(-1, 5)))
    assert [event.kind for event in found if event.kind == "poor_initialization"] == []


def test_first_loss_that_is_ordinary_ends_the_look() -> None:
    detector = FirstLossDetector()
    detector.note(Guess("cross_entropy", 2.3, "10 classes are alike"))
    assert detector.observe(plain(0, loss=2.5)) == []
    assert [detector.observe(plain(step, loss=5e3)) for step in (1, 2, 3)] == [[], [], []]
