"""Losses that stay where the frequencies of the labels put them, and those that do not stay there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_numbers import run_of
from sampled_runs import plain
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.detectors.base import Finding
from probe.detectors.convergence import PlateauDetector
from probe.detectors.label_frequencies import FIRST, LabelFrequencyDetector, LabelledLoss
from probe.detectors.sampled_thresholds import SampledThresholds
from probe.loop.counted_labels import labels_in_loss

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
OPTIONS = SampledThresholds(plateau_steps=120)
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of (12, 4) scores and (12,) classes: six of 0, three of 1, two of 2, one of 3."""
CLASSES = torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [3])
ALL, FIRST_SCORE = [[6, 3, 2, 1]], [[6, 6]]
KNOWN: dict[str, tuple[Loss, list[list[int]]]] = {
    "classes": (F.cross_entropy, ALL),
    "averaged by hand": (lambda x, y: F.cross_entropy(x, y, reduction="none").mean(), ALL),
    "accumulated": (lambda x, y: F.cross_entropy(x, y) / 4, ALL),
    "ignored": (lambda x, y: F.cross_entropy(x, torch.where(y == 0, -100, y)), [[0, 3, 2, 1]]),
    "pixels": (lambda x, y: F.cross_entropy(x.T[None], y[None]), ALL),
    "two answers": (lambda x, y: F.binary_cross_entropy_with_logits(x[:, 0], (y > 0).float()), FIRST_SCORE),
    "of probabilities": (
        lambda x, y: F.binary_cross_entropy(x[:, :1].sigmoid(), (y > 0).float()[:, None]),
        FIRST_SCORE,
    ),
    "several answers": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, F.one_hot(y, 4).float()),
        [[6, 6], [9, 3], [10, 2], [11, 1]],
    ),
}
UNKNOWN: dict[str, Loss] = {
    "a sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "class weights": lambda x, y: F.cross_entropy(x, y, weight=torch.rand(4)),
    "positives count more": lambda x, y: F.binary_cross_entropy_with_logits(
        x[:, 0], (y > 0).float(), pos_weight=torch.tensor(3.0)
    ),
    "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "soft labels": lambda x, y: F.binary_cross_entropy_with_logits(x, torch.rand(12, 4)),
    "two terms": lambda x, y: F.cross_entropy(x, y) + x.square().mean(),
    "focal": lambda x, y: (F.cross_entropy(x, y, reduction="none") ** 2).mean(),
    "squares": lambda x, y: F.mse_loss(x, torch.zeros(12, 4)),
    "a language": lambda x, y: F.cross_entropy(x.repeat(1, 20), y),
}


@pytest.mark.parametrize("name", KNOWN)
def test_labels_and_loss_are_read_from_the_graph(name: str) -> None:
    loss, counts = KNOWN[name]
    value = loss(torch.randn(12, 4, requires_grad=True), CLASSES)
    labelled = labels_in_loss(value)
    assert labelled is not None
    assert labelled.counts.tolist() == counts
    assert labelled.loss == pytest.approx(value.item() * (4 if name == "accumulated" else 1))


@pytest.mark.parametrize("name", UNKNOWN)
def test_labels_of_another_loss_are_not_read(name: str) -> None:
    assert labels_in_loss(UNKNOWN[name](torch.randn(12, 4, requires_grad=True), CLASSES)) is None


# -- the detector


def judged(excess: Callable[[int], float], share: float = 0.1, *, steps: int = 300) -> list[int]:
    """Steps at which something is found of losses so far above what the labels of each batch give."""
    detector, found, generator = LabelFrequencyDetector(OPTIONS), [], np.random.default_rng(0)
    for step in range(steps):
        ones = float(generator.binomial(32, share))
        counts = np.array([[32.0 - ones, ones]])
        loss = -((32 - ones) * math.log(1 - share) + ones * math.log(share)) / 32
        if not detector.is_over:
            detector.note(LabelledLoss(loss + excess(step), counts))
            detector.end_step(step)
        found += [step for _ in detector.observe(plain(step, loss=loss))]
    return found


def test_loss_at_the_frequencies_is_found_after_the_patience() -> None:
    assert judged(lambda step: 0.3 * math.exp(-step / 10)) == [159]
    assert judged(lambda step: 0.0, 0.3) == [127]


@pytest.mark.parametrize(
    ("excess", "share"),
    [
        (lambda step: -0.01, 0.1),
        (lambda step: -0.0003 * step, 0.1),
        (lambda step: 0.05, 0.1),
        (lambda step: 0.0, 0.5),
        (lambda step: 0.0, 0.0001),
        (lambda step: 0.2 * (step % 2) - 0.1, 0.1),
    ],
    ids=["below", "falls", "above", "balanced", "one label", "too noisy"],
)
def test_loss_that_is_elsewhere_is_not_found(excess: Callable[[int], float], share: float) -> None:
    assert judged(excess, share) == []


def test_updates_that_no_optimizer_makes_end_the_look() -> None:
    detector = LabelFrequencyDetector(OPTIONS)
    for _ in range(100):
        detector.note(LabelledLoss(0.3, np.array([[9.0, 1.0]])))
    assert detector.is_over


@pytest.mark.parametrize(
    ("ratio", "severities"), [(5e-3, ["info", "warning"]), (1e-6, ["warning"]), (None, ["warning"])]
)
def test_plateau_at_the_frequencies_is_judged_as_any_other(
    ratio: float | None, severities: list[str]
) -> None:
    """Information as long as weights change, for ten times the patience; the losses stay where they are."""
    labels = LabelFrequencyDetector(OPTIONS)
    detector, generator, found = PlateauDetector(OPTIONS, labels), np.random.default_rng(0), list[Finding]()
    for step in range(12 * OPTIONS.plateau_steps):
        ones = float(generator.binomial(32, 0.1))
        loss = -((32 - ones) * math.log(0.9) + ones * math.log(0.1)) / 32
        if not labels.is_over:
            labels.note(LabelledLoss(loss, np.array([[32.0 - ones, ones]])))
            labels.end_step(step)
        matrices = None if ratio is None else np.full(4, ratio)
        sample = plain(
            step, loss=loss, is_matrix=np.ones(4, np.bool_), update_ratio=matrices, total_grad_norm=1.0
        )
        found += detector.observe(sample)
    assert list(dict.fromkeys(finding.severity for finding in found)) == severities
    assert all("label frequencies" in finding.message for finding in found)


# -- in a training


def classify(
    labels: Callable[[Tensor], Tensor],
    *,
    steps: int = 260,
    bias: float = 0.0,
    rate: float = 0.02,
    given: float = 1.0,
) -> int:
    """Train a net of one answer; returns how many of the steps went the slow way because of this."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(net[2].bias, bias)  # type: ignore[arg-type]
    optimizer, slow = torch.optim.Adam(net.parameters(), lr=rate), 0
    with probe.watch(net, optimizer, sampled_thresholds=OPTIONS) as run:
        assert run._tracker is not None
        hooks = run._tracker._hooks
        for _ in range(steps):
            x = torch.randn(64, 10)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(given * x)[:, 0], labels(x)).backward()
            optimizer.step()
            slow += any("look_at_labels" in call.__name__ for call in hooks.before_backward.calls)
    return slow


def found(spool: Path) -> list[Any]:
    return [event for event in run_of(spool).latest_events if "label frequencies" in event.message]


def rare(x: Tensor) -> Tensor:
    return (x[:, 0] > 1.28).float()


def random(x: Tensor) -> Tensor:
    return (torch.rand(64) < 0.1).float()


@pytest.mark.parametrize("name", ["inputs that are 0", "labels without a rule"])
def test_training_that_predicts_the_frequencies_is_told_so(name: str, spool: Path) -> None:
    if name == "inputs that are 0":
        classify(rare, given=0.0)
    else:
        classify(random, rate=0.003)
    (event,) = found(spool)
    # Before a breakthrough weights change, too.
    does_change = name == "labels without a rule"
    assert (event.kind, event.severity) == ("loss_plateau", "info" if does_change else "warning")
    assert ("its weights still change" in event.message) == does_change
    assert OPTIONS.plateau_steps < event.step < 260
    assert event.evidence.value == pytest.approx(0.325, rel=0.08)
    assert "90% of the labels are the most frequent one" in event.message


HEALTHY: dict[str, Any] = {
    "learns": {"labels": rare},
    "starts there and learns": {"labels": rare, "bias": -2.2, "rate": 3e-3},
    "noise at its lowest loss": {"labels": lambda x: ((x[:, 0] > 0) != (torch.rand(64) < 0.1)).float()},
    "rare and noisy": {"labels": lambda x: ((x[:, 0] > 1.28) != (torch.rand(64) < 0.03)).float()},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_training_that_learns_from_its_inputs_is_silent(name: str, spool: Path) -> None:
    slow = classify(**HEALTHY[name])
    assert found(spool) == []
    assert slow < 200


def test_balanced_labels_are_looked_at_no_more_than_at_first(spool: Path) -> None:
    assert classify(lambda x: (torch.rand(64) < 0.5).float()) < FIRST
