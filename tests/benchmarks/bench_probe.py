"""Prints the probe's share of a step: by its own accounting, and paired against the same step without it.

    python tests/benchmarks/bench_probe.py [--steps 300] [--threads 1]

Two identical models are trained in turn in one process, one of them watched; each pair of steps gives one
difference, so that a drifting machine cancels out. Prints medians with the quartiles of the pairs.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

import demo_train
import probe
from probe import wire
from probe.journal_reader import read_stream

Step = Callable[[], Tensor]


class ManyTensors(nn.Module):
    """2,000 small tensors: 500 times Linear(32) and LayerNorm(32)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList((nn.Linear(32, 32), nn.LayerNorm(32))) for _ in range(500))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in self.layers:  # type: ignore[misc]
            x = x + 0.1 * norm(linear(x))
        return x


def make_mlp() -> tuple[nn.Module, Step]:
    """6 tensors, 1.3 M parameters."""
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    inputs, targets = torch.randn(128, 256), torch.randint(10, (128,))
    return model, lambda: F.cross_entropy(model(inputs), targets)


def make_demo() -> tuple[nn.Module, Step]:
    """The transformer of demo_train.py: 45 tensors."""
    data, vocabulary = demo_train.load_text()
    model = demo_train.CharTransformer(vocabulary)
    tokens, targets = demo_train.sample_batch(data, torch.Generator().manual_seed(0))
    return model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def make_many() -> tuple[nn.Module, Step]:
    """2,000 tensors of 32 or 1,024 elements."""
    model = ManyTensors()
    inputs = torch.randn(64, 32)
    return model, lambda: model(inputs).square().mean()


MODELS = {"demo transformer, 45 tensors": make_demo, "MLP, 6 tensors": make_mlp, "2,000 tensors": make_many}


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, compute_loss: Step) -> float:
    started = time.perf_counter()
    optimizer.zero_grad()
    compute_loss().backward()
    optimizer.step()
    return time.perf_counter() - started


def measure(
    make: Callable[[], tuple[nn.Module, Step]], steps: int, spool: Path
) -> tuple[np.ndarray, np.ndarray, list]:
    """Return (plain seconds, watched seconds, the watched run's own probe fractions), one entry per step."""
    twins = []
    for _ in range(2):
        torch.manual_seed(0)
        model, compute_loss = make()
        twins.append((model, torch.optim.AdamW(model.parameters(), lr=1e-4), compute_loss))
    plain, watched = [], []
    with probe.watch(twins[1][0], twins[1][1], spool=spool, connect="") as run:
        for step in range(steps):
            for which in (0, 1) if step % 2 else (1, 0):
                (watched if which else plain).append(training_step(*twins[which]))
    (writer,) = (spool / run.run).glob("0-*") if run.run else iter(())
    return np.array(plain), np.array(watched), list(own_milliseconds(writer))


def own_milliseconds(writer: Path) -> Iterator[float]:
    """What the probe says it spent on each step, in ms."""
    for _, payload in read_stream(writer, "metrics"):
        frame = wire.decode_record(payload)
        if isinstance(frame, wire.Frame) and "probe_fraction" in frame.scalars:
            yield 1e3 * frame.scalars["probe_fraction"] * frame.scalars["step_time_s"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    machine = f"{arguments.threads} thread(s) of {os.cpu_count()}"
    print(f"torch {torch.__version__}, {machine}, {arguments.steps} pairs")
    print(f"{'model':32} {'step ms':>8} {'own ms':>7} {'own %':>6} {'paired % (quartiles)':>24}")
    for name, make in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            plain, watched, own = measure(make, arguments.steps, Path(folder))
        skip = arguments.steps // 10
        pairs = 100 * (watched - plain)[skip:] / np.median(plain[skip:])
        low, middle, high = np.percentile(pairs, (25, 50, 75))
        step_ms, own_ms = 1e3 * float(np.median(plain[skip:])), float(np.median(own[skip:]))
        print(
            f"{name:32} {step_ms:8.2f} {own_ms:7.2f} {100 * own_ms / step_ms:6.2f} "
            f"{middle:10.2f} ({low:.2f} .. {high:.2f})"
        )


if __name__ == "__main__":
    main()
