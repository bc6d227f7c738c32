"""What the graph of a loss says of why it is 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from probe.loop.zero_losses import cause_of_zero


def scores(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def ctc(target: int, *, zero_infinity: bool = True) -> Tensor:
    log_probs, labels = scores(6, 2, 5).log_softmax(2), torch.ones(2, 9, dtype=torch.long)
    inputs, targets = torch.full((2,), 6), torch.tensor([target, 9])
    return F.ctc_loss(log_probs, labels, inputs, targets, zero_infinity=zero_infinity)


def targets(value: int) -> Tensor:
    return F.cross_entropy(scores(2, 3), torch.tensor([value, -100]), reduction="sum")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda: ctc(7), "every target is longer than its input (targets of 7 or more, inputs of at most 6"),
        (lambda: targets(-100), "ignore_index (-100)"),
        (lambda: (scores(4) * torch.zeros(4)).sum() / 4, "0 everywhere"),
        (lambda: F.relu(scores(4) - 100).mean(), "`relu` or `clamp`"),
        (lambda: (scores(4) - 100).clamp(min=0).sum(), "`relu` or `clamp`"),
    ],
)
def test_cause_is_read_from_the_graph(loss: Callable[[], Tensor], said: str) -> None:
    assert said in (cause_of_zero(loss()) or "")


@pytest.mark.parametrize(
    "loss",
    [
        lambda: ctc(3),
        lambda: ctc(7, zero_infinity=False),
        lambda: targets(1),
        lambda: (scores(4) * torch.tensor([0.0, 1.0, 1.0, 1.0])).sum(),
        lambda: F.mse_loss(F.relu(scores(4)), torch.zeros(4)),
        lambda: F.relu(scores(4)).pow(2).mean(),
        lambda: scores(1).sum().detach(),
    ],
)
def test_nothing_is_said_where_nothing_shows_it(loss: Callable[[], Tensor]) -> None:
    assert cause_of_zero(loss()) is None


def test_graph_that_a_backward_has_freed_says_nothing() -> None:
    loss = (scores(4) * torch.zeros(4)).sum()
    loss.backward()
    assert cause_of_zero(loss) is None
