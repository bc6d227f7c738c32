"""What a frame says of time and memory: step time, its phases, the probe's own share, host and CUDA memory.

Used by the measures and the pipeline, on the training thread; one call each per frame.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import torch

from ..compat import torch_memory
from ..delivery.host_memory import MemorySample, read_memory
from ..delivery.recorder.recorder import Recorder
from ..delivery.utilisation import Utilisation
from ..guard import Guard
from .phase_times import PhaseTimes

_CUDA_MEMORY_NS: Final = 1_000_000_000
"""How often the CUDA allocator is asked; its statistics take about 0.1 ms."""
_EPOCH_MEMORY_NS: Final = 1_000_000_000
"""How often the end of an epoch has the host's memory read, which takes as long."""


_LEAST_WAIT: Final = 0.01
"""Waits for a processor that are a smaller part of the time are not told."""


class StepTime(NamedTuple):
    """What one step took on the training thread."""

    step_ns: int
    own_ns: int
    """In the probe's own calls."""
    failures: int
    """Of the probe's own code, since the start."""
    waited_ns: int = 0
    """What these took beyond that by the wall: for a disk, a lock or a processor."""
    phases: Mapping[str, float] = MappingProxyType({})
    """Seconds of what is known of its phases, by name: see `phase_times.NAMES`."""

    def scalars(self) -> dict[str, float]:
        """Return what a frame says of it, under the names of `wire.SCALARS`."""
        scalars = {"step_time_s": self.step_ns / 1e9, "probe_fraction": self.own_ns / self.step_ns}
        scalars |= self.phases
        if self.failures:
            scalars["probe_failures"] = float(self.failures)
        return scalars


class StepMeters:
    """Readings since the previous frame, under the names of `wire.SCALARS`.

    Attributes:
        phases: adds up what the phases of the step under way take.
    """

    def __init__(self, guard: Guard, recorder: Recorder) -> None:
        self._guard, self._recorder = guard, recorder
        self.phases = PhaseTimes(guard)
        self._previous_ns: int | None = None
        self._spent_ns = self._waited_ns = 0
        self._memory_seen: MemorySample | None = None
        self._cuda_read_ns = self._epoch_read_ns = 0

    def read_time(self) -> StepTime | None:
        """The time since the last call, and the probe's part of it; None first, and after `forget_time`."""
        now_ns, spent_ns = time.perf_counter_ns(), self._guard.spent_so_far_ns()
        previous_ns, self._previous_ns = self._previous_ns, now_ns
        own_ns, self._spent_ns = spent_ns - self._spent_ns, spent_ns
        waited_so_far_ns = self._guard.waited_so_far_ns()
        waited_ns, self._waited_ns = waited_so_far_ns - self._waited_ns, waited_so_far_ns
        phases = self.phases.take()
        if previous_ns is None:
            return None
        return StepTime(now_ns - previous_ns, own_ns, self._guard.failures, waited_ns, phases)

    @property
    def read_ns(self) -> int:
        """When time was read last; now, where it never was."""
        return time.perf_counter_ns() if self._previous_ns is None else self._previous_ns

    def resume(self, read_ns: int) -> None:
        """Go on as if time had been read at `read_ns`, with all that the probe has taken up to now."""
        self._previous_ns, self._spent_ns = read_ns, self._guard.spent_so_far_ns()
        self._waited_ns = self._guard.waited_so_far_ns()

    def forget_time(self) -> None:
        """Steps pass that nobody times: the next one has no time of its own."""
        self._previous_ns = None
        self.phases.forget()

    def leave_out(self, ns: int) -> None:
        """Count so much less to the step under way: a pause is no part of it."""
        if self._previous_ns is not None:
            self._previous_ns += ns

    def read_memory(self) -> dict[str, float]:
        """Memory in bytes, where there is a new reading; nothing otherwise."""
        memory = self._recorder.memory
        scalars = {}
        if memory is not None and memory is not self._memory_seen:
            scalars = _host_scalars(memory)
            if (waited := 1.0 - self._recorder.processors.share()) >= _LEAST_WAIT:
                scalars["processor_wait"] = waited
        self._memory_seen = memory
        if time.perf_counter_ns() - self._cuda_read_ns > _CUDA_MEMORY_NS:
            scalars |= self._read_cuda()
        return scalars

    def read_memory_of_epoch(self) -> dict[str, float]:
        """Memory in bytes as it is now; as it was within the last second where epochs are shorter."""
        now_ns = time.perf_counter_ns()
        memory = self._recorder.memory
        if now_ns - self._epoch_read_ns > _EPOCH_MEMORY_NS:
            self._epoch_read_ns = now_ns
            memory = read_memory() or memory
        return ({} if memory is None else _host_scalars(memory)) | self._read_cuda()

    def _read_cuda(self) -> dict[str, float]:
        if not torch_memory.cuda_is_initialised():
            return {}
        self._cuda_read_ns = time.perf_counter_ns()
        return {
            "cuda_allocated_bytes": float(torch.cuda.memory_allocated()),
            "cuda_reserved_bytes": float(torch.cuda.memory_reserved()),
        }


def _host_scalars(memory: MemorySample) -> dict[str, float]:
    return _shares(memory.utilisation) | {
        "process_rss_bytes": float(memory.rss_bytes),
        "system_used_bytes": float(memory.system_used_bytes),
        "system_total_bytes": float(memory.system_total_bytes),
    }


def _shares(used: Utilisation | None) -> dict[str, float]:
    """What is known of them."""
    if used is None:
        return {}
    named = {
        "process_cpu_fraction": used.process_cpu,
        "system_cpu_fraction": used.system_cpu,
        "gpu_fraction": used.gpu,
    }
    return {name: share for name, share in named.items() if share is not None}
