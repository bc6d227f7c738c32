"""Prints what level `off` adds to a step.

    python tests/benchmarks/bench_off.py [--rounds 300]

A model so small that nothing but Python runs is trained at level off, some hundred steps with what is left of
the probe, a pair of torch's hooks of optimizers, and as many without it, in turn; and with a pair of hooks
that do nothing, the least that can count a step. Another model of the same process is no measure of it: its
steps find the same hooks. Thread CPU time, the median over the rounds and its 95 % interval; and what the two
hooks take when they are called again and again, their caches warm.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer

sys.path.insert(0, str(Path(__file__).parents[2]))

from overhead_floor import interval
from overhead_recorders import NO_DASHBOARD

import probe

_TOGETHER = 100
_WARM_UP = 300
_CALLS = 20_000
Hooks = tuple[dict[int, Any], dict[int, Any]]
TABLES: Final = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)


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


def step_us(step: Callable[[], None], hooks: Hooks) -> float:
    """Mean CPU time of some steps with these hooks alone."""
    for table, wanted in zip(TABLES, hooks, strict=True):
        table.clear()
        table.update(wanted)
    started_ns = time.thread_time_ns()
    for _ in range(_TOGETHER):
        step()
    return (time.thread_time_ns() - started_ns) / _TOGETHER / 1e3


def warm_us(optimizer: torch.optim.Optimizer, hooks: Hooks) -> float:
    """CPU time of one call of each hook."""
    arguments, keywords = (optimizer,), {}  # type: ignore[var-annotated]
    calls = [call for table in hooks for call in table.values()]
    started_ns = time.thread_time_ns()
    for _ in range(_CALLS):
        for call in calls:
            call(optimizer, arguments, keywords)
    return (time.thread_time_ns() - started_ns) / _CALLS / 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Print what level off adds to a step.")
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    model, optimizer, step = make_training()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        probe.watch(model, optimizer, spool=folder, connect=NO_DASHBOARD, level="off"),
    ):
        for _ in range(_WARM_UP):
            step()
        left: Hooks = (dict(TABLES[0]), dict(TABLES[1]))
        nothing: Hooks = ({0: lambda *_: None}, {0: lambda *_: None})
        kinds = {"without": ({}, {}), "level off": left, "two hooks that do nothing": nothing}
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind in random.sample(list(kinds), len(kinds)):
                took[kind].append(step_us(step, kinds[kind]))
        step_us(step, left)
        warm = statistics.median(warm_us(optimizer, left) for _ in range(9))
    plain = np.array(took.pop("without"))
    print(f"step {np.median(plain):.1f} us without; {rounds} rounds of {_TOGETHER} steps")
    for kind, values in took.items():
        middle, low, high = interval(np.array(values) - plain)
        print(f"{kind}: {middle:+.2f} us a step ({low:+.2f} .. {high:+.2f})")
    print(f"the hooks of level off, called again and again: {warm:.2f} us a step")


if __name__ == "__main__":
    main()
