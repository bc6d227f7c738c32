"""Prints what recording a training run costs, of the probe at every level and of others.

    python tests/benchmarks/overhead.py [--workloads mlp many] [--recorders basic naive] [--json FILE]

Two identical models are trained in turn in one process, one of them recorded; each pair of steps gives one
ratio, so that a drifting machine cancels out. Per workload and recorder:

- *step*: median of the steps without a recorder, in ms;
- *inside*: median time inside the recorder's calls on the training thread (of the probe: what it says of
  itself in its frames), in ms and as a share of that step; *mean*: the same share of the mean, in which steps
  with sampled measurements have their weight;
- *paired*: median of the recorded step over the plain one beside it, less 1, with its quartiles. The probe's
  wrappers are on classes that the plain twin shares, and pass through there in under a microsecond;
- *tree CPU*: CPU time of this process with all its threads, its children and the probe's helper, less that
  of two plain trainings, as a share of one.

Then clipping by the probe against torch's, the building of a frame, and on a GPU host synchronisations and
bytes copied per step.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from overhead_cuda import CudaCosts, measure_cuda
from overhead_recorders import LEVELS, RECORDERS, NotAvailableError, ProbeRecording, open_recording
from workloads import WORKLOADS, ComputeLoss, Workload

from probe.wire import Frame, encode
from probe.wire.columns import pack_block

Clip = Callable[[], object]
WARM_UP_SHARE = 0.15
ARMED_AFTER = 110
"""Steps until the probe's steady state: the first looks take a hundred, then C follows."""
FRAME_TENSORS = 2000
FRAME_COLUMNS = (
    *("grad_norm", "grad_max_abs", "grad_mean", "grad_std"),
    *("grad_nan_count", "grad_inf_count", "parameter_norm", "parameter_norm"),
)


@dataclass(slots=True)
class Twin:
    """One of two identical models, with what it takes to train it, and the time of its steps."""

    model: nn.Module
    compute_loss: ComputeLoss
    optimizer: torch.optim.Optimizer
    record: Callable[[Tensor], None] | None = None
    clip: Clip | None = None
    step_s: list[float] = field(default_factory=list)
    clip_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    cpu_clock: Callable[[], float] = time.thread_time

    def step(self) -> None:
        """Train one step."""
        cpu, started = self.cpu_clock(), time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.compute_loss()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.record is not None:
            self.record(loss.detach())
        if self.clip is not None:
            before = time.perf_counter()
            self.clip()
            self.clip_s.append(time.perf_counter() - before)
        self.optimizer.step()
        if loss.is_cuda:
            torch.cuda.synchronize(loss.device)
        self.step_s.append(time.perf_counter() - started)
        self.cpu_s += self.cpu_clock() - cpu

    def forget(self) -> None:
        """Start anew after the warm-up."""
        self.step_s.clear()
        self.clip_s.clear()
        self.cpu_s = 0.0


def make_twins(workload: Workload, device: torch.device) -> tuple[Twin, Twin]:
    """Make the plain model, and the one to be recorded."""
    twins = []
    for _ in range(2):
        torch.manual_seed(0)
        model, compute_loss = workload.make(device)
        twin = Twin(model, compute_loss, workload.make_optimizer(model.parameters()))
        twin.cpu_clock = time.thread_time if torch.get_num_threads() == 1 else time.process_time
        twins.append(twin)
    return twins[0], twins[1]


def train_in_turn(plain: Twin, recorded: Twin, steps: int) -> None:
    """Train both for so many steps, now the one first and now the other."""
    for step in range(steps):
        for twin in (plain, recorded) if step % 2 else (recorded, plain):
            twin.step()


# --------------------------------------------------------------------------------------------- recorders


@dataclass(slots=True, kw_only=True)
class Cost:
    """What one recorder costs on one workload; shares are percent of the plain step."""

    workload: str
    recorder: str
    tensors: int
    steps: int
    step_ms: float
    inside_ms: float | None
    inside_pct: float | None
    inside_mean_pct: float | None
    paired_pct: float
    paired_quartiles_pct: tuple[float, float]
    paired_range_pct: tuple[float, float]
    tree_cpu_pct: float


def measure_cost(workload: Workload, recorder: str, *, steps: int, device: torch.device) -> Cost:
    """Train the twins with and without the recorder.

    Raises:
        NotAvailableError: the recorder cannot be used here.
    """
    plain, recorded = make_twins(workload, device)
    warm_up = warm_up_for(steps)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        recording = open_recording(recorder, recorded.model, recorded.optimizer, Path(folder))
        recorded.record = recording.record
        try:
            train_in_turn(plain, recorded, warm_up)
            plain.forget()
            recorded.forget()
            tree = tree_cpu_seconds(recording.pids())
            train_in_turn(plain, recorded, steps)
            tree = tree_cpu_seconds(recording.pids()) - tree
        finally:
            inside = recording.close()
    step_ms = 1e3 * statistics.median(plain.step_s)
    inside = inside[warm_up:]
    inside_ms = statistics.median(inside) if inside else None
    pairs = 100.0 * (np.array(recorded.step_s) / np.array(plain.step_s) - 1.0)
    low, middle, high = np.percentile(pairs, (25, 50, 75)).tolist()
    return Cost(
        workload=workload.name,
        recorder=recorder,
        tensors=workload.tensors,
        steps=steps,
        step_ms=step_ms,
        inside_ms=inside_ms,
        inside_pct=None if inside_ms is None else 100.0 * inside_ms / step_ms,
        inside_mean_pct=100.0 * statistics.fmean(inside) / step_ms if inside else None,
        paired_pct=middle,
        paired_quartiles_pct=(low, high),
        paired_range_pct=(float(pairs.min()), float(pairs.max())),
        tree_cpu_pct=100.0 * (tree - 2.0 * plain.cpu_s) / plain.cpu_s,
    )


def warm_up_for(steps: int) -> int:
    """Steps before those that are measured; few where only few are asked for."""
    return max(2, int(WARM_UP_SHARE * steps), ARMED_AFTER if steps >= 20 else 0)


def tree_cpu_seconds(others: Sequence[int]) -> float:
    """CPU time so far of this process, its living children, and these processes."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True), *map(find, others)]:
        if process is not None and process.is_running():
            times = process.cpu_times()
            total += times.user + times.system
    return total


def find(pid: int) -> psutil.Process | None:
    """The process, if it still lives."""
    return psutil.Process(pid) if psutil.pid_exists(pid) else None


# ---------------------------------------------------------------------------------------------- clipping


@dataclass(slots=True, kw_only=True)
class ClipCost:
    """Training with the probe and its clipping, against torch's clipping and no probe."""

    workload: str
    step_ms: float
    torch_clip_ms: float
    probe_clip_ms: float
    paired_pct: float
    """Median of the step with the probe and its clipping over that with torch's alone, less 1."""
    paired_quartiles_pct: tuple[float, float]


def measure_clipping(workload: Workload, *, steps: int, device: torch.device) -> ClipCost:
    """Clip both twins' gradients to norm 1, one by each.

    Raises:
        NotAvailableError: the probe cannot clip.
    """
    plain, recorded = make_twins(workload, device)
    parameters = list(plain.model.parameters())
    plain.clip = lambda: nn.utils.clip_grad_norm_(parameters, 1.0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        recording = open_recording("basic", recorded.model, recorded.optimizer, Path(folder))
        assert isinstance(recording, ProbeRecording)
        try:
            clip = getattr(recording.run, "clip_gradients", None)
            if clip is None:
                raise NotAvailableError("the probe has no clip_gradients")
            recorded.clip = lambda: clip(1.0)
            train_in_turn(plain, recorded, warm_up_for(steps))
            plain.forget()
            recorded.forget()
            train_in_turn(plain, recorded, steps)
        finally:
            recording.close()
    pairs = 100.0 * (np.array(recorded.step_s) / np.array(plain.step_s) - 1.0)
    low, middle, high = np.percentile(pairs, (25, 50, 75)).tolist()
    return ClipCost(
        workload=workload.name,
        step_ms=1e3 * statistics.median(plain.step_s),
        torch_clip_ms=1e3 * statistics.median(plain.clip_s),
        probe_clip_ms=1e3 * statistics.median(recorded.clip_s),
        paired_pct=middle,
        paired_quartiles_pct=(low, high),
    )


# ------------------------------------------------------------------------------------------------- frame


@dataclass(slots=True, kw_only=True)
class FrameCost:
    """An encoded frame of 2,000 tensors and 8 statistics."""

    build_us: float
    frame_bytes: int
    values_bytes: int


def measure_frame(*, repetitions: int = 2000) -> FrameCost:
    """Build and encode a frame of a block of float64 statistics, over and over."""
    block = np.random.default_rng(0).lognormal(size=(len(FRAME_COLUMNS), FRAME_TENSORS))
    spent, encoded = [], b""
    for step in range(repetitions):
        started = time.perf_counter_ns()
        frame = Frame(step=step, time=0.0, columns=pack_block(FRAME_COLUMNS, block), scalars={"loss": 1.0})
        encoded = encode(frame)
        spent.append(time.perf_counter_ns() - started)
    return FrameCost(
        build_us=statistics.median(spent) / 1e3, frame_bytes=len(encoded), values_bytes=4 * block.size
    )


# ------------------------------------------------------------------------------------------------ output


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that was measured, and what was not and why."""

    machine: dict[str, object]
    costs: list[Cost] = field(default_factory=list)
    clipping: list[ClipCost] = field(default_factory=list)
    frame: FrameCost | None = None
    cuda: list[CudaCosts] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def print_cost(cost: Cost) -> None:
    """Print one row of the table."""
    parts = (cost.inside_ms, cost.inside_pct, cost.inside_mean_pct)
    inside = " ".join("      -" if part is None else f"{part:7.2f}" for part in parts)
    quartiles = "{:+.1f} .. {:+.1f}".format(*cost.paired_quartiles_pct)
    print(
        f"{cost.workload:8} {cost.recorder:12} {cost.tensors:7} {cost.step_ms:8.2f} {inside} "
        f"{cost.paired_pct:+8.2f} {quartiles:>18} {cost.tree_cpu_pct:+9.2f}",
        flush=True,
    )


def measure_all(arguments: argparse.Namespace, device: torch.device) -> Report:
    """Measure what was asked for, printing as it goes."""
    report = Report(machine=describe_machine(device))
    print(", ".join(f"{name} {value}" for name, value in report.machine.items()))
    print(
        f"{'workload':8} {'recorder':12} {'tensors':>7} {'step ms':>8} {'ins. ms':>7} {'ins. %':>7} "
        f"{'mean %':>7} {'paired %':>8} {'(quartiles)':>18} {'tree CPU %':>9}"
    )
    for workload in (WORKLOADS[name] for name in arguments.workloads):
        steps = choose_steps(workload, arguments, device)
        for recorder in arguments.recorders:
            try:
                report.costs.append(measure_cost(workload, recorder, steps=steps, device=device))
                print_cost(report.costs[-1])
            except NotAvailableError as reason:
                report.skipped[recorder] = str(reason)
        try:
            report.clipping.append(measure_clipping(workload, steps=steps, device=device))
        except NotAvailableError as reason:
            report.skipped["clipping"] = str(reason)
        if device.type == "cuda":
            levels = [level for level in arguments.recorders if level in LEVELS]
            report.cuda += [
                measure_cuda(make_twins(workload, device)[1], level, in_c=in_c)
                for level in levels
                for in_c in (True, False)
            ]
    report.frame = measure_frame()
    return report


def choose_steps(workload: Workload, arguments: argparse.Namespace, device: torch.device) -> int:
    """As many pairs of steps as fit into the time per row, 20 to 400."""
    if arguments.steps is not None:
        return int(arguments.steps)
    twin, _ = make_twins(workload, device)
    for _ in range(4):
        twin.step()
    return int(min(max(arguments.seconds / (2.0 * min(twin.step_s)), 20), 400))


def describe_machine(device: torch.device) -> dict[str, object]:
    """What the numbers depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    threads = {"threads": torch.get_num_threads(), "cpus": os.cpu_count()}
    return {"torch": torch.__version__, "device": f"{device.type} {name}".strip(), **threads}


def print_rest(report: Report) -> None:
    """Print what is not part of the table."""
    for cost in report.clipping:
        quartiles = "{:+.1f} .. {:+.1f}".format(*cost.paired_quartiles_pct)
        print(
            f"clipping, {cost.workload}: torch {cost.torch_clip_ms:.3f} ms, "
            f"probe {cost.probe_clip_ms:.3f} ms; step with the probe and its clipping "
            f"{cost.paired_pct:+.2f} % ({quartiles}) against torch's and no probe"
        )
    if report.frame is not None:
        print(
            f"frame of {FRAME_TENSORS} tensors x {len(FRAME_COLUMNS)} statistics: "
            f"{report.frame.build_us:.1f} us, {report.frame.frame_bytes:,} bytes, "
            f"{report.frame.values_bytes:,} of them values"
        )
    for cuda in report.cuda:
        print(cuda.describe())
    if not report.cuda:
        print("CUDA: not run" + ("" if torch.cuda.is_available() else ", there is no device"))
    for name, reason in report.skipped.items():
        print(f"{name}: not run, {reason}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--recorders", nargs="+", choices=RECORDERS, default=list(RECORDERS))
    parser.add_argument("--seconds", type=float, default=15.0, help="per row of the table, about")
    parser.add_argument("--steps", type=int, help="pairs of steps per row, instead of --seconds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few steps each, to see that it works")
    parser.add_argument("--json", type=Path, help="write everything there as well")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.steps is None:
        arguments.steps = 4
    torch.set_num_threads(arguments.threads)
    logging.getLogger("probe").setLevel(logging.CRITICAL)
    report = measure_all(arguments, torch.device(arguments.device))
    print_rest(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(report), indent=1))


if __name__ == "__main__":
    main()
