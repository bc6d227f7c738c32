"""Prints what the pass over all gradients costs beside the least that it can: microseconds and GB/s.

    python tests/benchmarks/bench_pass.py [--rounds 40] [workload ...]

After each backward, before the update, the gradients are read in one way, the ways taking turns: by the
kernel, as at every healthy step; by `smallest_pass.c`, which does only that part of it, for float32 alone and
with nothing checked; by a read that computes nothing; by `torch._foreach_norm`, which gives one of the
statistics. "Again" is a second pass right behind the first, out of the caches as far as they reach. Medians
with quartiles of the thread's CPU time, so that other work on the machine counts less; what that takes of
caches and memory still counts.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from workloads import WORKLOADS, Workload

from probe.measure.kernels import binding
from probe.measure.kernels.binding import Batch
from probe.measure.kernels.compile import find_compiler

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-w")
SOURCE = Path(__file__).with_name("smallest_pass.c")
TOLERANCE = 1e-4
"""What norms that were summed in float may be off."""


def compile_smallest(folder: Path) -> ctypes.CDLL:
    """Compile the smallest program for this processor."""
    compiler, library = find_compiler(), folder / "smallest.so"
    assert compiler is not None, "no C compiler was found"
    subprocess.run([*compiler, *FLAGS, str(SOURCE), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


class Ways:
    """The ways, each over the gradients that `gather` was given last."""

    def __init__(self, library: ctypes.CDLL, count: int) -> None:
        kernel = binding.kernel()
        assert kernel is not None, binding.status().reason
        self._kernel, self._batch = kernel, Batch(count)
        self._results = np.zeros((count, 3))
        self._gradients: list[Any] = []
        job = self._batch.job
        # Made once: to make them at each call would take some of the microseconds that are to be seen.
        memory = ctypes.c_int64(count), ctypes.c_void_p(job.pointers), ctypes.c_void_p(job.sizes)
        results = ctypes.c_void_p(self._results.ctypes.data)
        self.by_name: dict[str, Callable[[], object]] = {
            "ours": partial(kernel.measure, self._batch),
            "smallest": partial(library.smallest, *memory, results),
            "read only": partial(library.read_only, *memory),
            "_foreach_norm": lambda: torch._foreach_norm(self._gradients),
        }

    def gather(self, gradients: list[Any]) -> None:
        """Look up where they lie."""
        self._kernel.gather(self._batch, gradients)
        self._gradients = gradients

    def forget(self) -> None:
        """Let go of them: the next backward is to find their memory free."""
        self._gradients = []

    def check(self) -> None:
        """The smallest program is to say what the kernel says."""
        self.by_name["ours"]()
        self.by_name["smallest"]()
        np.testing.assert_allclose(self._results[:, :2].T, self._batch.block[:2], rtol=TOLERANCE)


def measure(workload: Workload, library: ctypes.CDLL, rounds: int) -> None:
    """Train, and print one row for each way."""
    torch.manual_seed(0)
    model, compute_loss = workload.make(torch.device("cpu"))
    parameters = list(model.parameters())
    optimizer, ways = workload.make_optimizer(parameters), Ways(library, len(parameters))
    names = list(ways.by_name)
    first: dict[str, list[float]] = {name: [] for name in names}
    again: dict[str, list[float]] = {name: [] for name in names}
    steps = []
    for turn in range(rounds):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            started = time.thread_time_ns()
            optimizer.zero_grad()
            compute_loss().backward()  # type: ignore[no-untyped-call]
            trained = time.thread_time_ns()
            ways.gather([parameter.grad for parameter in parameters])
            for spent in (first, again):
                before = time.thread_time_ns()
                ways.by_name[name]()
                spent[name].append((time.thread_time_ns() - before) / 1e3)
            ways.check()
            ways.forget()
            updated = time.thread_time_ns()
            optimizer.step()
            steps.append((trained - started + time.thread_time_ns() - updated) / 1e3)
    size, step_us = sum(parameter.nbytes for parameter in parameters), median(steps)
    print(f"{workload.title}: {size / 1e6:.1f} MB in {len(parameters)} tensors, step {step_us / 1e3:.1f} ms")
    for name in names:
        low, middle, high = quantiles(first[name], n=4)
        print(
            f"  {name:14} {middle:7.0f} us ({low:.0f} .. {high:.0f}), "
            f"{100 * middle / step_us:5.2f} % of the step, {size / middle / 1e3:5.1f} GB/s; "
            f"again {median(again[name]):7.0f} us",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], help="all by default")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}; {binding.status().reason}")
    with tempfile.TemporaryDirectory() as folder:
        library = compile_smallest(Path(folder))
        for name in arguments.workloads or WORKLOADS:
            measure(WORKLOADS[name], library, arguments.rounds)


if __name__ == "__main__":
    main()
