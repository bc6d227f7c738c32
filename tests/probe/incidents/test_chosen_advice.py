"""Advice of real faults: chosen by what the replay saw, and by what the training had changed before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")


class Gain(nn.Module):
    """As dropout and BatchNorm do, more so: other outputs in the other mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else 40.0 * x


def event_of(kind: str, spool: Path, disturb: Callable[[int, nn.Module], None], steps: int) -> Event:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Gain(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = probe.watch(model, optimizer, spool=spool, connect="", quiet=True, bundles=0)
    for step in range(steps):
        disturb(step, model)
        loss = nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(0, 3, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.close()
    (journal,) = spool.iterdir()
    return next(event for event in read_journal(journal).events if event.kind == kind)


def test_eval_that_is_left_on_is_what_changed_and_what_is_advised(tmp_path: Path) -> None:
    def forget_train(step: int, model: nn.Module) -> None:
        if step == 50:
            model.eval()

    event = event_of("loss_spike", tmp_path, forget_train, 56)
    assert "mode train -> eval at step 50" in event.message
    assert "call `model.train()`" in event.advice[0]
    assert not any("clip" in sentence.lower() or "batch" in sentence for sentence in event.advice)


def test_product_that_overflows_in_float32_is_not_told_of_half_precision(tmp_path: Path) -> None:
    def write_weights(step: int, model: nn.Module) -> None:
        if step == 5:
            for parameter in model.parameters():
                parameter.data.fill_(1e30)

    event = event_of("nonfinite_loss", tmp_path, write_weights, 6)
    assert event.origin is not None and "addmm" in str(event.origin.op)
    assert event.advice[0].startswith("A product of finite numbers overflowed: look")
    assert not any("65,504" in sentence for sentence in event.advice)


def test_product_that_only_read_nan_is_not_told_of_an_overflow(tmp_path: Path) -> None:
    def spoil(step: int, model: nn.Module) -> None:
        if step == 5:
            next(model.parameters()).data[0, 0] = torch.nan

    event = event_of("nonfinite_loss", tmp_path, spoil, 6)
    assert not any("overflowed" in sentence for sentence in event.advice), event.message
