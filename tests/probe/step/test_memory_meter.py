"""The kinds of memory in the frames of a whole training, on a CPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import nn

import probe

KINDS = ("parameters", "gradients", "optimizer")


def trained(spool: Path, *, seconds: float = 0.0, **options: object) -> list[dict[str, float]]:
    """Scalars of the frames that have kinds of memory, of 30 steps and of at least so many seconds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    with probe.watch(model, optimizer, spool=spool, connect="", **options) as run:
        begun, steps = time.monotonic(), 0
        while steps < 30 or time.monotonic() - begun < seconds:
            optimizer.zero_grad()
            model(torch.ones(32, 64)).square().mean().backward()
            optimizer.step()
            steps += 1
    frames = read_journal(spool / run.run).frames
    return [frame.scalars for frame in frames if "memory_parameters_bytes" in frame.scalars]


@pytest.fixture
def elements() -> int:
    return 64 * 256 + 256 + 256 * 8 + 8


def test_frames_of_a_training_have_the_sums(tmp_path: Path, elements: int) -> None:
    found = trained(tmp_path)
    assert found
    # The first step is measured before its update: there is no state yet.
    assert found[0]["memory_optimizer_bytes"] == 0
    for scalars in found:
        assert scalars["memory_parameters_bytes"] == scalars["memory_gradients_bytes"] == 4 * elements
        assert "memory_activations_bytes" not in scalars
        total = sum(scalars[f"memory_{name}_bytes"] for name in (*KINDS, "other"))
        assert total == scalars["process_rss_bytes"]


def test_activations_are_what_the_forward_saved(tmp_path: Path) -> None:
    # Memory is read once a second, the first time before any forward has been measured.
    found = trained(tmp_path, seconds=2.5, features={"module_memory": 1})
    # ReLU saves its result, which the second linear layer saves too; the first one saves the input.
    assert found[-1]["memory_activations_bytes"] == 4 * 32 * (64 + 256)


def test_level_without_memory_has_none(tmp_path: Path) -> None:
    assert trained(tmp_path, features={"memory": 0}) == []
