"""Which losses are known never to be negative, and what is said of one that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.detectors.base import Observation
from probe.detectors.loss_bound import EARLY, LASTING, LossBoundDetector
from probe.loop.bounded_losses import BY_HAND, bounded_function

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of (8, 5) scores and (8, 5) targets."""


def by_hand(p: Tensor, t: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    return -((t * p.log() + (1 - t) * (1 - p).log()) * gain).mean()


BCE, CE = "binary_cross_entropy_with_logits", "cross_entropy"
KNOWN: dict[str, tuple[Loss, str]] = {
    "binary": (F.binary_cross_entropy_with_logits, BCE),
    "binary, of a sigmoid": (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), "binary_cross_entropy"),
    "mean of rows": (
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none").sum(1).mean(),
        BCE,
    ),
    "accumulated": (lambda x, t: 0.5 * F.binary_cross_entropy_with_logits(x, t) / 4, BCE),
    "with a penalty": (
        lambda x, t: F.binary_cross_entropy_with_logits(x, t) + 0.1 * x.square().mean(),
        BCE,
    ),
    "positive classes count more": (
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.full((5,), 3.0)),
        BCE,
    ),
    "class probabilities": (F.cross_entropy, CE),
    "kl_div": (lambda x, t: F.kl_div(x, t.softmax(1), reduction="batchmean"), "kl_div"),
    "kl_div, mean of rows": (
        lambda x, t: F.kl_div(x.log_softmax(1), t.softmax(1), reduction="none").sum(1).mean(),
        "kl_div",
    ),
    "kl_div of logarithms": (
        lambda x, t: F.kl_div(x, t.log_softmax(1), reduction="sum", log_target=True),
        "kl_div",
    ),
    "distilled beside classes": (
        lambda x, t: F.cross_entropy(x, t.argmax(1)) + 4 * F.kl_div(x, t.softmax(1), reduction="batchmean"),
        "kl_div",
    ),
    "binary, by hand": (lambda x, t: by_hand(x.sigmoid(), t), BY_HAND),
    "binary, by hand, subtracted": (
        lambda x, t: (-t * x.sigmoid().log() - (1 - t) * (1 - x.sigmoid()).log()).sum() / 8,
        BY_HAND,
    ),
    "binary, by hand, clamped": (lambda x, t: by_hand(x.sigmoid().clamp(1e-6, 1 - 1e-6), t), BY_HAND),
    "binary, by hand, shifted": (
        lambda x, t: by_hand(x.sigmoid() + 1e-7, t) + 0.1 * x.square().mean(),
        BY_HAND,
    ),
    "binary, by hand, of scores": (
        lambda x, t: -torch.mean(t * F.logsigmoid(x)) - torch.mean((1 - t) * F.logsigmoid(-x)),
        BY_HAND,
    ),
    "squares": (F.mse_loss, ""),
    "classes": (lambda x, t: F.cross_entropy(x, t.argmax(1)), ""),
}
UNKNOWN: dict[str, Loss] = {
    "negated": lambda x, t: -F.binary_cross_entropy_with_logits(x, t),
    "a weight of -1": lambda x, t: -1.0 * F.binary_cross_entropy_with_logits(x, t),
    "weights of elements": lambda x, t: F.binary_cross_entropy_with_logits(x, t, weight=t - 0.5),
    "weights of rows": lambda x, t: (
        F.binary_cross_entropy_with_logits(x, t, reduction="none").mean(1) * t[:, 0]
    ).mean(),
    "difference": lambda x, t: F.binary_cross_entropy_with_logits(x, t) - x.square().mean(),
    "with an offset": lambda x, t: F.binary_cross_entropy_with_logits(x, t) - 1.0,
    "with an entropy": lambda x, t: (
        F.binary_cross_entropy_with_logits(x, t) + 0.1 * (x.softmax(1) * x.log_softmax(1)).sum(1).mean()
    ),
    "policy gradient": lambda x, t: -(x.log_softmax(1) * t).sum() / 8,
    "advantages": lambda x, t: (F.cross_entropy(x, t.argmax(1), reduction="none") * t[:, 0]).mean(),
    "critic": lambda x, t: x.mean(),
    "density": lambda x, t: F.gaussian_nll_loss(x, t, torch.ones(8, 5)),
    "a critic with weights of 1": lambda x, t: (torch.ones(8, 5) * (t - x)).mean(),
    "a critic with rows of 1": lambda x, t: (torch.ones(8, 1) * (t[:, :1] - x[:, :1])).sum(),
    "an expectation": lambda x, t: (t.softmax(1) * (t - x)).sum(1).mean(),
    "targets that are no probabilities": lambda x, t: F.kl_div(x, t, reduction="batchmean"),
    "a binary policy": lambda x, t: by_hand(x.sigmoid(), (t > 0.5).float(), t - 0.5),
    "a binary policy, folded": lambda x, t: (
        -((t + 0.5) * (t > 0.5) * x.sigmoid().log() + (t + 0.5) * (t < 0.5) * (1 - x.sigmoid()).log()).mean()
    ),
    "gains for one answer": lambda x, t: -((t + 0.5) * x.sigmoid().log()).mean(),
    "two gains of one probability": lambda x, t: (
        -(t * x.sigmoid().log() + (1 - t) * x.sigmoid().log()).mean()
    ),
    "two gains of two": lambda x, t: -(t * x.sigmoid().log() + (1 - t) * (1 - x.square()).log()).mean(),
    "a reward": lambda x, t: (t * x.sigmoid().log() + (1 - t) * (1 - x.sigmoid()).log()).mean(),
    "bernoulli entropy": lambda x, t: (
        x.sigmoid() * x.sigmoid().log() + (1 - x.sigmoid()) * (1 - x.sigmoid()).log()
    ).mean(),
    "likelihood of no softmax": lambda x, t: F.nll_loss(x, t.argmax(1)),
}


def function_of(loss: Loss) -> str | None:
    torch.manual_seed(0)
    scores = nn.Linear(3, 5)(torch.randn(8, 3))
    return bounded_function(loss(scores, torch.rand(8, 5)))


@pytest.mark.parametrize("name", KNOWN)
def test_function_without_negative_values_is_read_from_the_graph(name: str) -> None:
    loss, expected = KNOWN[name]
    assert function_of(loss) == expected


@pytest.mark.parametrize("name", UNKNOWN)
def test_loss_that_may_be_negative_is_none(name: str) -> None:
    assert function_of(UNKNOWN[name]) is None


@pytest.mark.parametrize("losses", [None, [], torch.ones(1), [torch.ones(1)], (torch.ones(1), None)])
def test_what_has_no_graph_is_none(losses: Any) -> None:
    assert bounded_function(losses) is None


# -- the detector


def observed(step: int, loss: float | None) -> Observation:
    empty = np.zeros(0)
    return Observation(
        step=step,
        loss=loss,
        total_grad_norm=1.0,
        grad_norm=empty,
        grad_max_abs=empty,
        grad_nan_count=None,
        grad_inf_count=None,
        missing=None,
        parameter_norm=None,
        parameter_names=(),
        layer_names=(),
        layer_of=np.zeros(0, np.intp),
    )


def run(losses: list[float], looks: list[str | None], again: str | None = BCE) -> list[int]:
    """Steps at which something is found; who asks for a look after the first ones is given `again`."""
    detector, found = LossBoundDetector(), []
    for step, loss in enumerate(losses):
        if detector.wants_look:
            detector.note(step, looks[step] if step < len(looks) else again)
        found += [step for _ in detector.observe(observed(step, loss))]
    return found


def test_negative_loss_of_such_a_function_is_found_at_the_fifth() -> None:
    losses = [1.0] * 80 + [-0.1 * step for step in range(1, 10)]
    assert run(losses, [BCE] * EARLY) == list(range(80 + LASTING - 1, 89))


@pytest.mark.parametrize(
    ("losses", "looks", "again"),
    [
        ([1.0] * 80 + [-1.0] * 9, [BCE] * 3 + [None] * 2, BCE),
        ([1.0] * 80 + [-1.0] * 9, [""] * EARLY, ""),
        ([1.0] * 80 + [-1.0] * 9, [BCE] * EARLY, None),
        ([1.0] * 80 + [-1.0] * 9, [BCE] * EARLY, "cross_entropy"),
        ([1.0] * 80 + [-1e-4] * 9, [BCE] * EARLY, BCE),
        (([1.0] * 25 + [-1.0] * 4) * 5, [BCE] * EARLY, BCE),
    ],
    ids=["changes at once", "nothing can be negative", "another loss later", "another function", "rounding",
         "comes back"],
)  # fmt: skip
def test_other_negative_losses_are_silent(
    losses: list[float], looks: list[str | None], again: str | None
) -> None:
    assert run(losses, looks, again) == []


# -- in a training


def train(
    loss: Loss, targets: Tensor, *, steps: int = 200, later: Loss | None = None, lr: float = 0.2
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    x = torch.randn(8, 3)
    with probe.watch(net, optimizer):
        for step in range(steps):
            value = (later if later is not None and step >= steps // 2 else loss)(net(x), targets)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()


def found(spool: Path) -> list[Any]:
    return [event for event in run_of(spool).latest_events if event.kind == "loss_divergence"]


LABELS = {
    "one and two": (F.binary_cross_entropy_with_logits, torch.randint(1, 3, (8, 5)).float()),
    "to 255": (F.binary_cross_entropy_with_logits, 255.0 * torch.rand(8, 5)),
    "probabilities that are none": (F.cross_entropy, torch.randn(8, 5)),
    "scores in place of log-probabilities": (
        lambda x, t: F.kl_div(x, t, reduction="batchmean"),
        torch.rand(8, 5).softmax(1),
    ),
    "minus one and one, by hand": (
        lambda x, t: by_hand(x.sigmoid().clamp(1e-6, 1 - 1e-6), t),
        2.0 * torch.randint(0, 2, (8, 5)) - 1.0,
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_targets_outside_of_their_range_are_told_soon_after_the_first_negative_loss(
    name: str, spool: Path
) -> None:
    loss, targets = LABELS[name]
    train(loss, targets)
    (event,) = found(spool)
    losses = [frame.scalars["loss"] for frame in run_of(spool).frames]
    first = next(step for step, value in enumerate(losses) if value < 0)
    assert event.severity == "warning"
    assert "below 0" in event.message
    assert first + LASTING - 1 <= event.step <= first + 20


HEALTHY: dict[str, Loss] = {
    "density": lambda x, t: F.gaussian_nll_loss(x, t, torch.full((8, 5), 1e-3)),
    "log-likelihood": lambda x, t: (0.5 * (x - t).square() - 2.0 - x.mean()).mean(),
    "policy": lambda x, t: by_hand(x.sigmoid(), (t > 0.5).float(), t - 0.5),
    "critic": lambda x, t: x[:4].mean() - x[4:].mean() + 0.1 * x.square().mean(),
    "cosine": lambda x, t: -F.cosine_similarity(x, t).mean(),
    "reward": lambda x, t: -(t * x.tanh()).mean(),
    "binary, by hand": lambda x, t: by_hand(x.sigmoid(), t),
    "distilled": lambda x, t: F.kl_div(x.log_softmax(1), t.softmax(1), reduction="batchmean"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_negative_and_written_losses_that_are_meant_so_are_silent(name: str, spool: Path) -> None:
    train(HEALTHY[name], torch.rand(8, 5))
    assert found(spool) == []


def test_loss_that_is_another_one_later_on_is_silent(spool: Path) -> None:
    train(
        F.binary_cross_entropy_with_logits,
        torch.rand(8, 5),
        later=lambda x, t: (x.softmax(1) * x.log_softmax(1)).sum(1).mean(),
        lr=0.01,
    )
    assert found(spool) == []
    assert min(frame.scalars["loss"] for frame in run_of(spool).frames) < -1.0


def test_targets_that_leave_their_range_while_steps_are_followed_are_told(spool: Path) -> None:
    """One look at the graph has the steps go the slow way once more."""
    bce = F.binary_cross_entropy_with_logits
    train(bce, torch.rand(8, 5), steps=4000, later=lambda x, t: bce(x, 3.0 * t), lr=0.01)
    (event,) = found(spool)
    assert event.step > 2000
    assert "below 0" in event.message
