"""What the probe makes a GPU's host wait for and copy, per step; used by `overhead.py` where there is one."""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from overhead_recorders import ProbeRecording
from torch import nn
from torch.profiler import ProfilerActivity, profile

STEPS = 20


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
            f"CUDA, {self.level}: step {self.plain_step_ms:.3f} -> {self.step_ms:.3f} ms, per step "
            f"{self.syncs:+.2f} syncs, {self.copies:+.2f} copies, {self.bytes_copied:+,.0f} bytes"
        )


def measure_cuda(twin: Trainable, level: str) -> CudaCosts:
    """Train without the probe, then with it."""
    before = _measure(twin)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        recording = ProbeRecording(level, twin.model, twin.optimizer, Path(folder))
        try:
            after = _measure(twin)
        finally:
            recording.close()
    return CudaCosts(
        level=level,
        plain_step_ms=before[0],
        step_ms=after[0],
        syncs=after[1] - before[1],
        copies=after[2] - before[2],
        bytes_copied=after[3] - before[3],
    )


def _measure(twin: Trainable) -> tuple[float, float, float, float]:
    """Milliseconds, synchronisations, copies and bytes copied per step."""
    for _ in range(STEPS):
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
