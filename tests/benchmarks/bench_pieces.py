"""Prints how long training waits for Python's lock while the recorder's thread has it, and where that works.

    python tests/benchmarks/bench_pieces.py [--workloads mlp many] [--steps 300] [--worst 8]

A training is watched until C follows its steps. Between its steps the training thread then does nothing but
give the lock away for a moment and ask for it back, a few thousand times; a *piece* is the CPU time that the
recorder's thread has taken meanwhile: what a training, whose operators give the lock away too, waits for.
Other load on the machine does not lengthen it. Printed are the pieces, and where the thread was after the
longest ones; *in all* is the thread's CPU time as a share of that of the training's steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from workloads import WORKLOADS, Workload

import probe

ARMED_AFTER: Final = 130
SHORTEST_NS: Final = 20_000
"""Less is a wake that finds nothing."""
GIVEN_S: Final = 0.00005
SHARE_OF_STEP: Final = 1.0
"""So much of a step's time the training thread asks for the lock after it."""
LONG_NS: Final = 500_000


def recorder_thread() -> threading.Thread:
    """The probe's own thread."""
    return next(one for one in threading.enumerate() if one.name == "nanscope-recorder")


def place_of(thread: threading.Thread) -> str:
    """The innermost two functions of the probe's in which a thread is."""
    assert thread.ident is not None
    frame, found = sys._current_frames().get(thread.ident), []
    while frame is not None and len(found) < 3:
        if f"{os.sep}probe{os.sep}" in frame.f_code.co_filename:
            found.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found)


def collect(clock: int, thread: threading.Thread, seconds: float, places: Counter[str]) -> list[int]:
    """Ask for the lock again and again; return the CPU time of the thread in each wait, in ns."""
    pieces = []
    end_s = time.perf_counter() + seconds
    before = time.clock_gettime_ns(clock)
    while time.perf_counter() < end_s:
        time.sleep(GIVEN_S)
        now = time.clock_gettime_ns(clock)
        if now - before > SHORTEST_NS:
            pieces.append(now - before)
            if now - before > LONG_NS:
                places[place_of(thread)] += 1
        before = now
    return pieces


def measure(workload: Workload, steps: int, worst: int) -> None:
    """Train, and print the pieces."""
    torch.manual_seed(0)
    model, compute_loss = workload.make(torch.device("cpu"))
    optimizer = workload.make_optimizer(model.parameters())
    with tempfile.TemporaryDirectory(prefix="bench-pieces") as folder:
        run = probe.watch(model, optimizer, spool=Path(folder), connect="", run="pieces", overhead_limit=0)
        thread = recorder_thread()
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        pieces: list[int] = []
        places: Counter[str] = Counter()
        training_s = 0.0
        begun_ns = 0
        for step in range(ARMED_AFTER + steps):
            if step == ARMED_AFTER:
                training_s, begun_ns = 0.0, time.clock_gettime_ns(clock)
            started_s, cpu_s = time.perf_counter(), time.thread_time()
            optimizer.zero_grad()
            compute_loss().backward()
            optimizer.step()
            training_s += time.thread_time() - cpu_s
            if step >= ARMED_AFTER:
                pieces += collect(clock, thread, SHARE_OF_STEP * (time.perf_counter() - started_s), places)
        spent_ns = time.clock_gettime_ns(clock) - begun_ns
        run.close()
    times = np.array(pieces or [0]) / 1e3
    quantiles = " ".join(f"p{q:g} {np.percentile(times, q):7.0f}" for q in (50, 90, 99, 100))
    above = f"{(times > 1000).sum()} above 1 ms"
    share = 100 * spent_ns / 1e9 / training_s
    print(f"{workload.title:24} {len(times):6} pieces, us: {quantiles}, {above}; in all {share:.2f} %")
    for place, count in places.most_common(worst):
        print(f"    {count:5} {place}")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", nargs="+", default=["mlp", "many"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--worst", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for workload in WORKLOADS.values():
        if workload.name in options.workloads:
            measure(workload, options.steps, options.worst)


if __name__ == "__main__":
    main()
