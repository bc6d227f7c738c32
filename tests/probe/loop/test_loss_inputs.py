"""Which losses are made of probabilities that are squashed once more, and which only look like it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.detectors.loss_inputs import LossInput, LossInputDetector, lowest_loss
from probe.loop.misfit_losses import misfit_in_loss

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of (8, 5) scores and (8,) classes."""


def at_every_pixel(x: Tensor, y: Tensor) -> Tensor:
    maps = x[:, :, None, None].expand(8, 5, 2, 2).softmax(1)
    return F.cross_entropy(maps, y[:, None, None].expand(8, 2, 2))


WRONG: dict[str, tuple[Loss, tuple[str, str | None, int]]] = {
    "softmax": (lambda x, y: F.cross_entropy(x.softmax(1), y), ("cross_entropy", "softmax", 5)),
    "sigmoid": (lambda x, y: F.cross_entropy(x.sigmoid(), y), ("cross_entropy", "sigmoid", 5)),
    "scaled": (
        lambda x, y: 1024 * F.cross_entropy(x.softmax(1), y, label_smoothing=0.1) / 4,
        ("cross_entropy", "softmax", 5),
    ),
    "one of two terms": (
        lambda x, y: x.square().mean() + 0.1 * F.cross_entropy(x.softmax(1), y),
        ("cross_entropy", "softmax", 5),
    ),
    "of a sequence": (
        lambda x, y: F.cross_entropy(x.view(2, 4, 5).softmax(-1).transpose(1, 2), y.view(2, 4)),
        ("cross_entropy", "softmax", 5),
    ),
    "soft labels": (
        lambda x, y: F.cross_entropy(x.softmax(1), F.one_hot(y, 5).float()),
        ("cross_entropy", "softmax", 5),
    ),
    "pixels": (at_every_pixel, ("cross_entropy", "softmax", 5)),
    "two classes": (
        lambda x, y: F.binary_cross_entropy_with_logits(x[:, 0].sigmoid(), (y > 2).float()),
        ("binary_cross_entropy_with_logits", "sigmoid", 0),
    ),
    "no logarithm": (lambda x, y: F.nll_loss(x.softmax(1), y), ("nll_loss", "softmax", 0)),
    "a layer's own": (lambda x, y: F.nll_loss(nn.Linear(5, 5)(x), y), ("nll_loss", None, 0)),
}
RIGHT: dict[str, Loss] = {
    "scores": lambda x, y: F.cross_entropy(x, y),
    "log_softmax, then nll_loss": lambda x, y: F.nll_loss(x.log_softmax(1), y),
    "log of a softmax": lambda x, y: F.nll_loss(x.softmax(1).log(), y),
    "log_softmax twice": lambda x, y: F.cross_entropy(x.log_softmax(1), y),
    "probabilities with a temperature": lambda x, y: F.cross_entropy(x.softmax(1) / 0.05, y),
    "cosine with a temperature": lambda x, y: F.cross_entropy(F.normalize(x) @ F.normalize(x).T / 0.1, y),
    "attention further up": lambda x, y: F.cross_entropy(x.softmax(1) @ torch.randn(5, 5), y),
    "gate": lambda x, y: F.cross_entropy(x * x.sigmoid(), y),
    "binary, of a sigmoid": lambda x, y: F.binary_cross_entropy(x[:, 0].sigmoid(), (y > 2).float()),
    "binary, of scores": lambda x, y: F.binary_cross_entropy_with_logits(x[:, 0], (y > 2).float()),
    "policy with entropy": lambda x, y: (
        F.cross_entropy(x, y) + 0.01 * (x.softmax(1) * x.log_softmax(1)).sum(1).mean()
    ),
    "distillation": lambda x, y: F.kl_div(
        x.log_softmax(1), torch.rand(8, 5).softmax(1), reduction="batchmean"
    ),
    "mixture of log-probabilities": lambda x, y: F.nll_loss(x.log_softmax(1) @ torch.rand(5, 5), y),
    "squares of probabilities": lambda x, y: (x.softmax(1) - F.one_hot(y, 5)).square().mean(),
}


def misfit_of(loss: Loss) -> LossInput | None:
    torch.manual_seed(0)
    scores = nn.Linear(3, 5)(torch.randn(8, 3))
    return misfit_in_loss(loss(scores, torch.randint(0, 5, (8,))))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_squashed_twice_is_read_from_the_graph(name: str) -> None:
    loss, expected = WRONG[name]
    assert misfit_of(loss) == expected


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_loss_expects_is_no_misfit(name: str) -> None:
    assert misfit_of(RIGHT[name]) is None


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_lowest_loss_is_that_of_perfect_probabilities(classes: int) -> None:
    perfect = torch.eye(classes, dtype=torch.float64)[:1]
    reached = F.cross_entropy(perfect, torch.tensor([0])).item()
    assert lowest_loss(LossInput("cross_entropy", "softmax", classes)) == pytest.approx(reached, rel=1e-12)


def test_lowest_loss_of_two_classes_is_that_of_perfect_probabilities() -> None:
    one = torch.ones(1, dtype=torch.float64)
    reached = F.binary_cross_entropy_with_logits(one, one).item()
    misfit = LossInput("binary_cross_entropy_with_logits", "sigmoid", 0)
    assert lowest_loss(misfit) == pytest.approx(reached, rel=1e-12)
    zero = F.binary_cross_entropy_with_logits(torch.zeros(1), torch.zeros(1)).item()
    assert zero == pytest.approx(math.log(2.0), rel=1e-6)


def test_few_odd_losses_are_none() -> None:
    detector = LossInputDetector()
    for misfit in (LossInput("nll_loss", None, 0), None, None, LossInput("nll_loss", None, 0), None):
        assert not detector.is_over
        detector.note(misfit)
    assert detector.is_over and detector.observe(None) == []  # type: ignore[arg-type]


def classify(spool: Path, last: nn.Module, loss_function: nn.Module) -> list[tuple[str, str]]:
    """Train a classifier that ends in `last`; return (kind, message) of the warnings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4), last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with probe.watch(model, optimizer):
        for _ in range(20):
            x = torch.randn(32, 6)
            loss = loss_function(model(x), x[:, :4].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [(e.kind, e.message) for e in run_of(spool).events if e.severity == "warning"]


def test_run_with_two_softmaxes_is_told_what_the_loss_cannot_fall_below(spool: Path) -> None:
    found = classify(spool, nn.Softmax(dim=1), nn.CrossEntropyLoss())[0]
    assert found[0] == "loss_plateau"
    assert "cross_entropy is given what a softmax returns" in found[1]
    assert "cannot fall below 0.744 over 4 classes" in found[1]


def test_run_with_scores_as_log_probabilities_is_told_so(spool: Path) -> None:
    found = classify(spool, nn.Identity(), nn.NLLLoss())
    assert [kind for kind, _ in found][:1] == ["loss_divergence"]
    assert "expects log-probabilities" in found[0][1]


def test_run_with_one_softmax_is_silent(spool: Path) -> None:
    assert classify(spool, nn.LogSoftmax(dim=1), nn.NLLLoss()) == []
