"""Prints what level `off` adds to a step.

    python tests/benchmarks/bench_off.py [--rounds 300]

A model so small that nothing but Python runs is trained beside its watched twin, a hundred steps of one and
then a hundred of the other. Caches are warm: the difference is the work itself. Thread CPU time, the median
over the rounds and its 95 % interval.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from overhead_floor import interval
from overhead_recorders import NO_DASHBOARD

import probe

_TOGETHER = 100
_WARM_UP = 300


def make_training() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A linear layer, its optimizer, and one step of them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(2, 4), torch.zeros(2, 4)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return model, optimizer, step


def step_us(step: Callable[[], None]) -> float:
    """Mean CPU time of some steps."""
    started_ns = time.thread_time_ns()
    for _ in range(_TOGETHER):
        step()
    return (time.thread_time_ns() - started_ns) / _TOGETHER / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Print what level off adds to a step.")
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    _, _, plain = make_training()
    model, optimizer, watched = make_training()
    differences, steps = [], []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        probe.watch(model, optimizer, spool=folder, connect=NO_DASHBOARD, level="off"),
    ):
        for _ in range(_WARM_UP):
            plain()
            watched()
        for turn in range(rounds):
            if turn % 2:
                watched_us, plain_us = step_us(watched), step_us(plain)
            else:
                plain_us, watched_us = step_us(plain), step_us(watched)
            differences.append(watched_us - plain_us)
            steps.append(plain_us)
    middle, low, high = interval(np.array(differences))
    print(
        f"step {np.median(steps):.1f} us; level off {middle:+.2f} us a step ({low:+.2f} .. {high:+.2f}), "
        f"{rounds} rounds of {_TOGETHER} steps"
    )


if __name__ == "__main__":
    main()
