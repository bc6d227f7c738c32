"""What the probe makes a GPU's host wait for, copy and compute, per step; used by `overhead.py` with a GPU.

With C following the steps, as the product does once it has seen enough of them, and with all in the slow way.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from overhead_recorders import ProbeRecording
from torch import nn
from torch.profiler import ProfilerActivity, profile

from probe.loop import fast_path
from probe.measure.kernels import hot_binding

STEPS = 20
LEARNED = 130
"""By then the first looks are over, and C follows the steps."""


class Trainable(Protocol):
    """A model with its optimizer that can be trained a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Train one step."""
        ...


@dataclass(slots=True, kw_only=True)
class CudaCosts:
    """Per step, with the probe less without it, but for the step times."""

    level: str
    followed: float
    """Share of the steps that C has followed."""
    own_ms: float
    """The probe's own time on the host, of the median step."""
    plain_step_ms: float
    """By CUDA events, from the first kernel of a step to its last."""
    step_ms: float
    syncs: float
    """Synchronising calls that torch's own debug mode counts."""
    copies: float
    """Copies between device and host."""
    bytes_copied: float

    def describe(self) -> str:
        """All of it in a line."""
        return (
            f"CUDA, {self.level}, {self.followed:.0%} of the steps followed in C: step "
            f"{self.plain_step_ms:.3f} -> {self.step_ms:.3f} ms, {self.own_ms:.3f} ms of the host; per step "
            f"{self.syncs:+.2f} syncs, {self.copies:+.2f} copies, {self.bytes_copied:+,.0f} bytes"
        )


def measure_cuda(twin: Trainable, level: str, *, in_c: bool) -> CudaCosts:
    """Train without the probe, then with it; C may follow the steps or not."""
    before = _measure(twin, STEPS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, following(in_c=in_c):
        recording = ProbeRecording(level, twin.model, twin.optimizer, Path(folder))
        own_ms: list[float] = []
        try:
            for _ in range(LEARNED):
                twin.step()
            counted = _Counted(twin, recording)
            after = _measure(counted, 0)
        finally:
            own_ms = recording.close()
    return CudaCosts(
        level=level,
        followed=counted.followed / counted.steps,
        own_ms=statistics.median(own_ms[-counted.steps :]) if own_ms else math.nan,
        plain_step_ms=before[0],
        step_ms=after[0],
        syncs=after[1] - before[1],
        copies=after[2] - before[2],
        bytes_copied=after[3] - before[3],
    )


@contextmanager
def following(*, in_c: bool) -> Iterator[None]:
    """Have C follow the steps of sessions that begin inside, or none."""
    status = fast_path.hot_binding.status
    if not in_c:
        fast_path.hot_binding.status = lambda: hot_binding.HotStatus(None, "switched off")  # type: ignore[assignment]
    try:
        yield
    finally:
        fast_path.hot_binding.status = status


class _Counted:
    """A twin whose steps are counted, and how many of them C has followed."""

    def __init__(self, twin: Trainable, recording: ProbeRecording) -> None:
        self.model, self.optimizer = twin.model, twin.optimizer
        self.steps = self.followed = 0
        self._twin, self._recording = twin, recording

    def step(self) -> None:
        """Train one step."""
        self._twin.step()
        tracker = self._recording.run._tracker
        self.steps += 1
        self.followed += tracker is not None and tracker.fast.is_engaged


def _measure(twin: Trainable, first: int) -> tuple[float, float, float, float]:
    """Milliseconds, synchronisations, copies and bytes copied per step, after so many first ones."""
    for _ in range(first):
        twin.step()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(STEPS):
        twin.step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / STEPS, _count_syncs(twin), *_count_copies(twin)


def _count_syncs(twin: Trainable) -> float:
    """Warnings of torch's debug mode; it does not see the twin's own `torch.cuda.synchronize`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(STEPS):
                twin.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught) / STEPS


def _count_copies(twin: Trainable) -> tuple[float, float]:
    """Number and bytes of the profiler's copies that touch the host."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            twin.step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and "DtoD" not in e.get("name", "")]
    return len(copies) / STEPS, sum(e.get("args", {}).get("bytes", 0) for e in copies) / STEPS
