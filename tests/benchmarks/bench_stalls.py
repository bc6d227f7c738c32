"""Prints how long training is held up by the probe's looks at memory.

    python tests/benchmarks/bench_stalls.py [--seconds 10] [--pairs 2] [--scripts quiet leaking] [--objects N]

The same seeded training, with steps of about 2 ms, runs in processes of its own: plain and watched in turn.
Per process and script:

- *steps*: how many there were, the median, and the three longest after the first 50, in ms;
- *looks*: how many times the leak watch looked at the heap, the longest single hold of the training thread
  by the wall clock and in CPU time (another process may take the processor meanwhile), in ms, and all of them
  as a share of the time;
- *found*: at which step, the the `memory_leak` event.

`--objects` makes the heap larger by so many tuples in a list of lists, as a large data set does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn
from torch.nn import functional as F

FIRST_STEPS = 50
"""The probe's first steps have costs of their own, which `overhead.py` prints."""


def train(script: str, *, is_watched: bool, seconds: float, objects: int) -> dict[str, Any]:
    """Train for so long and return what `report` prints."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, targets = torch.randn(64, 256), torch.randint(10, (64,))
    samples = [[(number, str(number)) for number in range(1000)] for _ in range(objects // 1000)]
    holds, findings = watch_looks() if is_watched else [], []
    run = open_run(model, optimizer, findings) if is_watched else None
    losses, step_s = [], []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss if script == "leaking" else loss.item())
        step_s.append(time.perf_counter() - started)
    if run is not None:
        run.close()
    later = sorted(step_s[FIRST_STEPS:], reverse=True)
    return {
        "steps": len(step_s),
        "median_ms": 1e3 * statistics.median(step_s),
        "longest_ms": [1e3 * value for value in later[:3]],
        "looks": len(holds),
        "longest_look_ms": 1e3 * max((wall for wall, _ in holds), default=0.0),
        "longest_look_cpu_ms": 1e3 * max((cpu for _, cpu in holds), default=0.0),
        "looks_share_pct": 100 * sum(wall for wall, _ in holds) / seconds,
        "found": findings,
        "samples": len(samples),
    }


def watch_looks() -> list[tuple[float, float]]:
    """Have every look of the leak watch timed; return the list of their wall and CPU seconds."""
    from probe.memory.leak_watch import LeakWatch

    holds: list[tuple[float, float]] = []
    look = LeakWatch.look

    def timed(self: LeakWatch, *args: Any) -> Any:
        started, cpu = time.perf_counter(), time.thread_time()
        try:
            return look(self, *args)
        finally:
            holds.append((time.perf_counter() - started, time.thread_time() - cpu))

    LeakWatch.look = timed  # type: ignore[method-assign]
    return holds


def open_run(model: nn.Module, optimizer: torch.optim.Optimizer, findings: list[int]) -> Any:
    """Watch the model, recording in a folder that is left to the system."""
    os.environ["NANSCOPE_QUIET"] = "1"
    import probe
    from probe.incidents.incidents import IncidentReporter

    report = IncidentReporter.report

    def noted(self: IncidentReporter, finding: Any, step: int, *args: Any, **options: Any) -> Any:
        if finding.kind == "memory_leak":
            findings.append(step)
        return report(self, finding, step, *args, **options)

    IncidentReporter.report = noted  # type: ignore[method-assign]
    return probe.watch(model, optimizer, spool=tempfile.mkdtemp(prefix="nanscope-stalls-"), connect="")


def run_child(script: str, *, is_watched: bool, seconds: float, objects: int) -> dict[str, Any]:
    """Train in a process of its own."""
    command = [sys.executable, __file__, "--child", "--scripts", script, "--seconds", str(seconds)]
    command += ["--objects", str(objects), *(["--watched"] if is_watched else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def line_of(script: str, name: str, result: dict[str, Any]) -> str:
    """One row of the table."""
    longest = " ".join(f"{value:6.1f}" for value in result["longest_ms"])
    return (
        f"{script:8s} {name:8s} {result['steps']:6,} {result['median_ms']:7.2f}   {longest}   "
        f"{result['looks']:5d} {result['longest_look_ms']:7.2f} "
        f"{result['longest_look_cpu_ms']:7.2f} {result['looks_share_pct']:8.2f} %   "
        f"{', '.join(map(str, result['found'])) or '-'}"
    )


def main() -> None:
    """Run the pairs and print a row for each process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--objects", type=int, default=0)
    parser.add_argument("--scripts", nargs="+", choices=("quiet", "leaking"), default=["quiet", "leaking"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = {"seconds": options.seconds, "objects": options.objects}
    if options.child:
        print(json.dumps(train(options.scripts[0], is_watched=options.watched, **sizes)))
        return
    print(
        "script   process   steps  median   three longest, ms      looks longest     CPU      share   found"
    )
    for script in options.scripts:
        for _ in range(options.pairs):
            for name, is_watched in (("plain", False), ("watched", True)):
                result = run_child(script, is_watched=is_watched, **sizes)
                print(line_of(script, name, result), flush=True)


if __name__ == "__main__":
    main()
