"""How busy processors and a GPU are: the process's share, the machine's, the device's. Any thread.

Each reading is about the time since the one before, by the same reader. Reads small files; of a GPU it asks
NVML through torch, where that is there.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

import msgspec

from ..guard import let_pass

_STAT: Final = "/proc/stat"
_BYTES: Final = 512
_IDLE: Final = (3, 4)
"""Fields of the first line of /proc/stat that are no work: idle, and waiting for a disk."""
_GUEST: Final = 8
"""From this field on the times are part of others."""


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """Shares (0-1); None where the system does not tell."""

    process_cpu: float | None = None
    """Of all processors, taken by this process."""
    system_cpu: float | None = None
    """Of all processors, by everything."""
    gpu: float | None = None
    """Of the time in which the current CUDA device ran a kernel, of any process."""


class UtilisationReader:
    """Reads what has changed since it was read last; the first reading has no CPU shares."""

    def __init__(self) -> None:
        self._wall_s = self._own_s = 0.0
        self._times: tuple[int, int] | None = None
        self._has_gpu = True

    def read(self) -> Utilisation:
        """Return the shares since the last call."""
        wall_s, own_s, times = time.monotonic(), time.process_time(), _machine_times()
        passed_s = wall_s - self._wall_s
        own = (own_s - self._own_s) / (passed_s * _processors()) if self._wall_s and passed_s > 0 else None
        system = None
        if times is not None and self._times is not None and times[1] > self._times[1]:
            busy, whole = times[0] - self._times[0], times[1] - self._times[1]
            system = min(1.0, max(0.0, busy / whole))
        self._wall_s, self._own_s, self._times = wall_s, own_s, times
        return Utilisation(
            process_cpu=None if own is None else min(1.0, max(0.0, own)), system_cpu=system, gpu=self._gpu()
        )

    def _gpu(self) -> float | None:
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if not self._has_gpu or cuda is None or not cuda.is_initialized():
            return None
        try:
            return float(cuda.utilization()) / 100.0
        except (ImportError, RuntimeError, OSError, AttributeError, ValueError) as error:
            let_pass(error)
            # Without NVML, and its errors are RuntimeErrors of many kinds: not asked for again.
            self._has_gpu = False
            return None


def _processors() -> int:
    return os.cpu_count() or 1


def _machine_times() -> tuple[int, int] | None:
    """Time of all processors since the machine's start, in ticks: busy, and in all."""
    try:
        descriptor = os.open(_STAT, os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(descriptor, _BYTES).split(b"\n", 1)[0]
        finally:
            os.close(descriptor)
        ticks = [int(word) for word in line.split()[1:]][:_GUEST]
    except (OSError, ValueError) as error:
        let_pass(error)
        return None
    whole = sum(ticks)
    return (whole - sum(ticks[place] for place in _IDLE), whole) if len(ticks) > max(_IDLE) else None
