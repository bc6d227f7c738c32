"""Prints what a healthy step costs at level basic, beside one pass over the gradients and beside W&B's norms.

    python tests/benchmarks/overhead_floor.py [--workloads mlp many] [--pairs 300]

Identical models are trained in turn in one process: a plain one, one whose gradients are measured by one pass
of the kernel and nothing else (the *floor*), one with the norms that loggers read (*norms*, without the
logging), and one that is watched; then, where W&B is installed, a plain one and one whose norms it logs. The
order changes from round to round. At last a watched model is trained *alone*, as in a training of one's own:
with three others in turn its gradients lie scattered, and out of the caches. Per workload, of quiet steps, on
which nothing is sampled:

- *callbacks*: median of what the probe says of itself in its records, in us and as a share of the plain step;
  *with sampled*: the same of the mean over all steps, in which each kind of step (with activations, with an
  update, behind one, with parameter norms, quiet) counts with its median as often as it comes, so that what
  other programs take from a step is none of it; *raw*: of the plain mean; below, what each kind of step adds,
  beside what the smallest program takes that does only this (`smallest_sampled.py`);
- *CPU*: median over the rounds of the training thread's CPU time above that of the plain model, with its 95 %
  interval; *x floor* is the ratio of the medians;
- *wall*: the median and the 99th percentile of the step's wall time over that of the plain model;
- *page faults* of a step, beside the plain one's: where large blocks come to lie at the end of malloc's heap,
  freeing them gives the memory back, and the next step takes each page anew, some 1 us each.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from overhead import Twin, describe_machine, make_twins
from overhead_recorders import NO_DASHBOARD, record_at_least, record_norms, record_to_wandb
from smallest_sampled import SmallestSampled
from workloads import WORKLOADS, Workload

import probe
from probe import wire
from probe.delivery.journal.journal_reader import read_stream

ARMED_AFTER = 110
"""Steps until C follows: the first looks take a hundred."""
ALONE_S = 15.0
"""At least so long a model is trained alone: some hundred steps have few of the rarer kinds."""
SAMPLED = {*range(0, 100_000, 50), *range(1, 100_000, 50)}
"""Steps with work that is not done at every step; looking at an update falls into the next one."""
KINDS = {"activations": (100, 0), "update": (50, 0), "behind an update": (50, 1), "norms": (10, 0)}
"""Period and first step of each kind; a step is of the first that fits."""


@dataclass(slots=True)
class Entry:
    """One of the models."""

    name: str
    twin: Twin
    cpu_s: list[float]
    faults: list[int]
    """Pages that each step took from the kernel."""


def train_round(entries: list[Entry], turn: int) -> None:
    """One step of each, beginning with another one each time."""
    first = turn % len(entries)
    for entry in [*entries[first:], *entries[:first]]:
        before, faults = entry.twin.cpu_s, page_faults()
        entry.twin.step()
        entry.faults.append(page_faults() - faults)
        entry.cpu_s.append(entry.twin.cpu_s - before)


def page_faults() -> int:
    """Of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Median and its 95 % interval, by resampling."""
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(differences, (2000, len(differences))), axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(np.median(differences)), float(low), float(high)


def kind_of(step: int) -> str:
    """What is done at a step besides what is done at every one."""
    return next((kind for kind, (period, at) in KINDS.items() if step % period == at), "quiet")


def mean_of_kinds(spent: dict[int, float]) -> float:
    """Mean over the steps, each counted as the median of its kind."""
    by_kind = by_kinds(spent)
    # Of a kind that was never seen nothing is known: the mean is that of the others.
    often = {kind: sum(kind_of(step) == kind for step in range(100)) for kind in by_kind}
    return sum(often[kind] * statistics.median(by_kind[kind]) for kind in by_kind) / sum(often.values())


def by_kinds(spent: dict[int, float]) -> dict[str, list[float]]:
    """The same, by the kinds of the steps."""
    by_kind: dict[str, list[float]] = {}
    for step, us in spent.items():
        by_kind.setdefault(kind_of(step), []).append(us)
    return by_kind


def print_kinds(spent: dict[int, float], least: dict[int, float], step_us: float) -> None:
    """Print what each kind of step costs, what that adds to the mean of all steps, and the least of it."""
    by_kind, least_of = by_kinds(spent), by_kinds(least)
    quiet = statistics.median(by_kind["quiet"])
    for kind in (kind for kind in KINDS if kind in by_kind):
        middle, often = statistics.median(by_kind[kind]), sum(kind_of(step) == kind for step in range(100))
        added = often / 100 * (middle - quiet)
        smallest = (
            f"; smallest program {statistics.median(least_of[kind]):.0f} us, ours {middle - quiet:.0f}"
            if kind in least_of
            else ""
        )
        print(
            f"        {kind:16} {often:2} of 100 steps, median {middle:6.0f} us: "
            f"adds {added:5.1f} us a step, {100 * added / step_us:.2f} %{smallest}"
        )


class Told(NamedTuple):
    """What the probe says of one step, in us."""

    own: float
    step: float
    """The step as it took, with the probe."""


def told_by_probe(spool: Path, run: str, first: int) -> dict[int, Told]:
    """What the probe says of each step from `first` on."""
    frames: dict[int, dict[str, float]] = {}
    for writer in (spool / run).glob("0-*"):
        for _, payload in read_stream(writer, "metrics"):
            record = wire.decode_record(payload)
            if isinstance(record, wire.Frame):
                frames.setdefault(record.step, {}).update(record.scalars)
    return {
        step: Told(1e6 * scalars["probe_fraction"] * scalars["step_time_s"], 1e6 * scalars["step_time_s"])
        for step, scalars in frames.items()
        if step >= first and "probe_fraction" in scalars
    }


def own_us(spool: Path, run: str, first: int) -> dict[int, float]:
    """Our part alone."""
    return {step: told.own for step, told in told_by_probe(spool, run, first).items()}


def measure(workload: Workload, pairs: int) -> None:
    """Train, and print one row for each model."""
    device = torch.device("cpu")
    (plain, floor), (norms, watched) = make_twins(workload, device), make_twins(workload, device)
    entries = [
        Entry(name, twin, [], [])
        for name, twin in (("plain", plain), ("floor", floor), ("norms", norms), ("probe", watched))
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        of_quiet = record_at_least(floor.model, floor.optimizer, Path(folder))
        smallest = SmallestSampled(floor.model, floor.optimizer, Path(folder))

        def record(loss: torch.Tensor) -> None:
            of_quiet.record(loss)
            smallest.before_update()

        floor.record = record
        norms.record = record_norms(norms.model, norms.optimizer, Path(folder)).record
        spool = Path(folder) / "spool"
        with probe.watch(
            watched.model, watched.optimizer, spool=spool, connect=NO_DASHBOARD, overhead_limit=0.0
        ) as run:
            for turn in range(ARMED_AFTER):
                train_round(entries, turn)
            for entry in entries:
                entry.cpu_s.clear()
                entry.faults.clear()
                entry.twin.forget()
            for turn in range(pairs):
                train_round(entries, turn)
        spent = own_us(spool, run.run, ARMED_AFTER)
        least = {step: us for step, us in smallest.spent_us.items() if step >= ARMED_AFTER}
    report(workload, entries, spent, least)
    measure_alone(workload, pairs)
    if importlib.util.find_spec("wandb"):
        measure_wandb(workload, pairs)


def measure_alone(workload: Workload, steps: int) -> None:
    """Train one watched model and nothing else, and print what its callbacks take."""
    _, watched = make_twins(workload, torch.device("cpu"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with probe.watch(
            watched.model, watched.optimizer, spool=Path(folder), connect=NO_DASHBOARD, overhead_limit=0.0
        ) as run:
            begun_s = time.perf_counter()
            while len(watched.step_s) < ARMED_AFTER + steps or time.perf_counter() - begun_s < ALONE_S:
                watched.step()
        told = told_by_probe(Path(folder), run.run, ARMED_AFTER)
    spent = {step: one.own for step, one in told.items()}
    # With the probe's part taken out: shares are of a plain step.
    step_us = statistics.median(one.step - one.own for one in told.values())
    print(
        f"{workload.name:7} alone  step {step_us / 1e3:7.2f} ms{callbacks_text(spent, step_us)}", flush=True
    )
    print_kinds(spent, {}, step_us)


def callbacks_text(spent: dict[int, float], step_us: float) -> str:
    """Say what the callbacks take, of quiet steps and of all."""
    quiet = statistics.median(us for step, us in spent.items() if step not in SAMPLED)
    return (
        f"; callbacks {quiet:.0f} us = {100 * quiet / step_us:.2f} %, with sampled "
        f"{100 * mean_of_kinds(spent) / step_us:.2f} %, raw "
        f"{100 * statistics.fmean(spent.values()) / step_us:.2f} %"
    )


def measure_wandb(workload: Workload, pairs: int) -> None:
    """The same of W&B, after the others: what its threads do and keep is not to be in their steps."""
    entries = [
        Entry(name, twin, [], [])
        for name, twin in zip(("plain", "wandb"), make_twins(workload, torch.device("cpu")), strict=True)
    ]
    logged = entries[1].twin
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = record_to_wandb(logged.model, logged.optimizer, Path(folder))
        logged.record = run.record
        for turn in range(pairs):
            train_round(entries, turn)
        run.close()
    report(workload, entries, {}, {})


def report(
    workload: Workload, entries: list[Entry], spent: dict[int, float], least: dict[int, float]
) -> None:
    """Print what was measured."""
    plain = entries[0]
    step_us = 1e6 * statistics.median(plain.twin.step_s)
    kept = [at for at in range(len(plain.cpu_s)) if ARMED_AFTER + at not in SAMPLED]
    floor_us = math.nan
    for entry in entries[1:]:
        differences = 1e6 * (np.array(entry.cpu_s)[kept] - np.array(plain.cpu_s)[kept])
        middle, low, high = interval(differences)
        floor_us = middle if entry.name == "floor" else floor_us
        walls = np.array(entry.twin.step_s)[kept] / np.array(plain.twin.step_s)[kept] - 1.0
        own = ""
        if entry.name == "probe":
            own = callbacks_text(spent, step_us)
        print(
            f"{workload.name:7} {entry.name:6} step {step_us / 1e3:7.2f} ms; CPU {middle:+7.0f} us "
            f"({low:+.0f} .. {high:+.0f}), x floor {middle / floor_us:5.2f}; wall "
            f"{100 * np.median(walls):+.2f} %, p99 {100 * np.percentile(walls, 99):+.0f} %; page faults "
            f"{statistics.median(entry.faults):.0f} beside {statistics.median(plain.faults):.0f}{own}",
            flush=True,
        )
        if entry.name == "probe":
            print_kinds(spent, least, step_us)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    print(", ".join(f"{name} {value}" for name, value in describe_machine(torch.device("cpu")).items()))
    for name in arguments.workloads:
        measure(WORKLOADS[name], arguments.pairs)


if __name__ == "__main__":
    main()
