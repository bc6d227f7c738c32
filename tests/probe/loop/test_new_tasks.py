"""Trainings whose task changes while the input keeps its size, and the faults that look alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.loop.batch_classes import has_one_class

pytestmark = pytest.mark.usefixtures("one_thread")

Batch = tuple[Tensor, Tensor]
AT, STEPS = 250, 420


def warned(
    spool: Path, data: Callable[[int], Batch], loss_of: Callable[..., Tensor], outputs: int
) -> list[tuple[str, int]]:
    """Train, and return the warnings about loss and gradients."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with probe.watch(model, optimizer, quiet=True, connect=""):
        for step in range(STEPS):
            inputs, targets = data(step)
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()
    (run,) = spool.iterdir()
    kinds = ("loss_spike", "gradient_explosion", "loss_divergence")
    events = [event for event in read_journal(run).latest_events if event.kind in kinds]
    return [(event.kind, event.step) for event in events if event.severity != "info"]


def regression(step: int) -> Batch:
    """Another function of the inputs from a step on."""
    inputs = torch.randn(64, 16)
    part = inputs[:, :8] if step < AT else inputs[:, 8:]
    return inputs, part.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1)


def labels(step: int) -> Tensor:
    return torch.randint(4, (64,))


def centres() -> Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(7))


def permuted(step: int) -> Batch:
    """The same classes, their features in another order from a step on."""
    targets = labels(step)
    inputs = 2 * centres()[targets] + 0.7 * torch.randn(64, 16)
    return (inputs if step < AT else inputs.roll(5, 1)), targets


def renamed(step: int) -> Batch:
    """The same inputs; the classes have changed their numbers."""
    targets = labels(step)
    inputs = 2 * centres()[targets] + 0.7 * torch.randn(64, 16)
    return inputs, (targets if step < AT else (targets + 1) % 4)


@pytest.mark.parametrize(
    ("data", "loss_of", "outputs"),
    [(regression, F.mse_loss, 1), (permuted, F.cross_entropy, 4), (renamed, F.cross_entropy, 4)],
    ids=["another function", "another order of features", "other names of classes"],
)
def test_new_task_at_the_same_size_is_no_warning(
    spool: Path, data: Callable[[int], Batch], loss_of: Callable[..., Tensor], outputs: int
) -> None:
    assert warned(spool, data, loss_of, outputs) == []


def test_corrupt_batch_warns(spool: Path) -> None:
    def data(step: int) -> Batch:
        inputs, targets = regression(0)
        return inputs, (100 * torch.randn(64, 1) if step == AT else targets)

    assert AT in [step for _, step in warned(spool, data, F.mse_loss, 1)]


def test_targets_that_are_shuffled_from_a_step_on_warn(spool: Path) -> None:
    def data(step: int) -> Batch:
        inputs, targets = regression(0)
        return inputs, (targets[torch.randperm(64)] if step >= AT else targets)

    assert AT in [step for _, step in warned(spool, data, F.mse_loss, 1)]


def test_data_that_are_sorted_by_class_warn(spool: Path) -> None:
    def data(step: int) -> Batch:
        targets = torch.full((64,), step // 100 % 4)
        return 2 * centres()[targets] + 0.7 * torch.randn(64, 16), targets

    assert warned(spool, data, F.cross_entropy, 4) != []


# ------------------------------------------------------------------------------ classes of a batch

SCORES = torch.randn(8, 3, requires_grad=True)
MIXED = torch.tensor([0, 0, 0, 1, 0, 0, 0, 2])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (F.cross_entropy(SCORES, MIXED), False),
        (F.cross_entropy(SCORES, torch.ones(8, dtype=torch.long)), True),
        (2 * F.cross_entropy(SCORES, torch.ones(8, dtype=torch.long)) / 4, True),
        (F.binary_cross_entropy_with_logits(SCORES[:, 0], torch.zeros(8)), True),
        (F.binary_cross_entropy_with_logits(SCORES[:, 0], (MIXED > 0).float()), False),
        (F.cross_entropy(SCORES[:3], MIXED[:3]), None),
        (F.mse_loss(SCORES[:, 0], torch.zeros(8)), None),
        (torch.ones(()), None),
    ],
    ids=["mixed", "one", "scaled", "zeros", "both", "too few", "no classes", "no graph"],
)
def test_batch_of_one_class_is_seen_in_the_graph_of_its_loss(loss: Tensor, expected: bool | None) -> None:
    assert has_one_class(loss) is expected
