"""What the training itself changed before an event, among what moved first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.wire import message_lines

STEPS = 24


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def rate(run: probe.Run, model: Two, opt: torch.optim.Optimizer, step: int) -> int:
    opt.param_groups[0]["lr"] = 2e-4 if step < STEPS - 2 else 0.3
    return 8


def batch(run: probe.Run, model: Two, opt: torch.optim.Optimizer, step: int) -> int:
    return 8 if step < STEPS - 1 else 3


def phase(run: probe.Run, model: Two, opt: torch.optim.Optimizer, step: int) -> int:
    model.body.requires_grad_(step >= STEPS - 3)
    opt.zero_grad(set_to_none=True)
    return 8


def level(run: probe.Run, model: Two, opt: torch.optim.Optimizer, step: int) -> int:
    if step == STEPS - 4:
        run.set_level("advanced")
    return 8


def nothing(run: probe.Run, model: Two, opt: torch.optim.Optimizer, step: int) -> int:
    """A warmup, which is no jump."""
    opt.param_groups[0]["lr"] = 1e-3 * (step + 1) / STEPS
    return 8


def moves_of(change: Callable[..., int], spool: Path) -> list[str]:
    torch.manual_seed(0)
    model = Two()
    opt = torch.optim.SGD(model.parameters(), lr=2e-4)
    with probe.watch(model, opt, spool=spool, connect="") as run:
        for step in range(STEPS):
            opt.zero_grad()
            size = change(run, model, opt, step)
            loss = model(torch.randn(size, 4)).square().mean()
            (loss * (float("nan") if step == STEPS - 1 else 1.0)).backward()
            opt.step()
        assert run._guard.failures == 0
    (journal,) = spool.iterdir()
    event = next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")
    return message_lines.moves(event.message)


def lowest_rate(run: probe.Run, model: Two, opt: torch.optim.Optimizer, step: int) -> int:
    """Of the body's group alone, below that of the head."""
    if step == 0:
        body = list(model.body.parameters())
        opt.param_groups[0]["params"] = list(model.head.parameters())
        opt.add_param_group({"params": body, "lr": 1e-6})
    opt.param_groups[1]["lr"] = 1e-6 if step < STEPS - 2 else 1e-4
    return 8


def test_parts_that_were_frozen_at_the_start_are_a_new_phase(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Two()
    model.body.requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    with probe.watch(model, opt, spool=tmp_path / "spool", connect=""):
        for step in range(STEPS):
            if step == STEPS - 3:
                model.body.requires_grad_(True)
                opt.param_groups[0]["lr"] = 0.1
            loss = model(torch.randn(8, 4)).square().mean() * (float("nan") if step == STEPS - 1 else 1.0)
            opt.zero_grad()
            loss.backward()
            opt.step()
    (journal,) = (tmp_path / "spool").iterdir()
    event = next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")
    said = message_lines.moves(event.message)
    assert f"phase (layers that are trained: 1 -> 2) at step {STEPS - 3}" in said, event.message
    assert f"learning rate 0.0001 -> 0.1 at step {STEPS - 3}" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rate, f"learning rate 0.0002 -> 0.3 at step {STEPS - 2}"),
        (lowest_rate, f"learning rate 1e-06 -> 0.0001 (the lowest of all groups) at step {STEPS - 2}"),
        (batch, f"batch size 8 -> 3 at step {STEPS - 1}"),
        (phase, f"phase (layers with gradients: 1 -> 2) at step {STEPS - 3}"),
        (level, f"level -> advanced at step {STEPS - 4}"),
    ],
)
def test_change_before_the_event_is_the_first_of_what_moved(
    change: Callable[..., int], said: str, tmp_path: Path
) -> None:
    assert moves_of(change, tmp_path / "spool")[0] == said


def test_warmup_and_equal_batches_are_no_change(tmp_path: Path) -> None:
    assert moves_of(nothing, tmp_path / "spool") == []
