"""A replay may run a function of the script that updates: that is no step of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from early_arming import early_arming
from journals import read_journal
from small_training import batches, seeded_model
from torch import nn
from torch.nn import functional as F

import probe
from probe.threads.unnoticed import unnoticed

STEPS = 12


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, targets: Any) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), targets).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def rerun(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, inputs: Any, targets: Any) -> None:
    """What a script's function may do; leaves the gradients as they were."""
    before = [parameter.grad for parameter in model.parameters()]
    train(model, optimizer, inputs, targets)
    optimizer.step(lambda: F.cross_entropy(model(inputs), targets).item())
    scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
    scaler.step(optimizer)
    scaler.update()
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize("in_c", [False, True])
@pytest.mark.parametrize("verdict", ["before_update", "after_update"])
@pytest.mark.parametrize("place", ["between steps", "before the update"])
def test_updates_of_a_replay_are_no_steps(spool: Path, verdict: Any, place: str, in_c: bool) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    with (
        early_arming(in_c=in_c),
        probe.watch(model, optimizer, spool=spool, run="run", verdict=verdict) as run,
    ):
        for step, (inputs, targets) in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if place == "before the update" and step % 4 == 3:
                with unnoticed():
                    rerun(model, optimizer, scaler, inputs, targets)
                    run.log(of_replay=1.0)
            optimizer.step()
            if place == "between steps" and step % 4 == 3:
                with unnoticed():
                    rerun(model, optimizer, scaler, inputs, targets)
                    run.log(of_replay=1.0)
        assert run._guard.failures == 0
    frames = read_journal(spool / "run").frames
    assert [frame.step for frame in frames] == list(range(STEPS))
    assert all("loss" in frame.scalars and "grad_norm_clipped" in frame.scalars for frame in frames)
    assert not any("of_replay" in frame.scalars for frame in frames)
