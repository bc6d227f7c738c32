"""Where the events of followed steps say that a step was made: by all the lines that led to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from early_arming import early_arming
from journals import read_journal
from torch import nn

import probe
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]
HERE = Path(__file__)


class Loop:
    """A step within a batch within an epoch, as trainers have it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self, scale: float) -> None:
        x = torch.randn(16, 8)
        self.optimizer.zero_grad()
        loss = (scale * (self.model(x) - x.sum(1, keepdim=True))).square().mean()
        loss.backward()
        self.optimizer.step()

    def batch(self, depth: int, scale: float) -> None:
        if depth:
            self.batch(depth - 1, scale)
        else:
            self.step(scale)

    def epoch(self, steps: int, depth: int, *, scale: float = 1.0) -> None:
        for _ in range(steps):
            self.batch(depth, scale)

    def train(self, depth: int) -> None:
        self.epoch(60, depth)  # warm-up
        self.epoch(40, depth)  # main
        self.epoch(3, depth, scale=1e3)  # after the fault
        self.epoch(10, depth)  # end


def lines_of(*markers: str) -> set[int]:
    lines = HERE.read_text(encoding="utf-8").splitlines()
    return {n for n, line in enumerate(lines, 1) if line.endswith(tuple(f"# {marker}" for marker in markers))}


@pytest.mark.parametrize("depth", [0, 1, 15])
@pytest.mark.parametrize("in_c", [True, False])
def test_event_names_the_line_that_led_to_its_own_step(spool: Path, in_c: bool, depth: int) -> None:
    loop = Loop()
    with early_arming(in_c=in_c) as followed:
        run = probe.watch(loop.model, loop.optimizer, run="run", connect="", level="basic")
        loop.train(depth)
        run.close()
    assert bool(followed.steps) is in_c
    journal = read_journal(spool / "run")
    event = next(event for event in journal.latest_events if event.kind == "gradient_explosion")
    assert event.step == 100
    seen = {frame.line for frame in event.stacks.training_loop if frame.file == str(HERE)}
    assert seen & lines_of("warm-up", "main", "after the fault", "end") == lines_of("after the fault")
