"""Marks moments of a step and turns them into nanoseconds at its end: host time, or CUDA events read late.

Marks come in pairs: the probe's own work on the training thread lies between the first and the second of each
pair, and is taken out of every time that is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Nanoseconds = npt.NDArray[np.float64]


class CallClock(Protocol):
    """Numbers moments; says later when they were."""

    def mark(self) -> int:
        """Note this moment; returns its number, 0, 1, 2, ..."""
        ...

    def read(self) -> Nanoseconds:
        """Return the (marks,) nanoseconds of all moments since some beginning, and forget them."""
        ...


class HostClock:
    """Wall-clock time of the training thread: what a module takes on the CPU."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._marks: list[int] = []

    def mark(self) -> int:
        """Note this moment."""
        self._marks.append(self._now_ns())
        return len(self._marks) - 1

    def read(self) -> Nanoseconds:
        """Return the nanoseconds of all marks."""
        marks, self._marks = self._marks, []
        return np.array(marks, dtype=np.float64)


class CudaClock:
    """Time on the device: events on the current stream, read when the step's numbers are fetched.

    Events are reused. Reading waits for the last of them; the verdict on the gradients has waited already.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    def restart(self) -> None:
        """Forget the marks of a step that nobody has read."""
        self._used = 0

    def mark(self) -> int:
        """Record an event."""
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[self._used].record(torch.cuda.current_stream(self._device))
        self._used += 1
        return self._used - 1

    def read(self) -> Nanoseconds:
        """Return the nanoseconds of all marks since the first."""
        events, self._used = self._events[: self._used], 0
        if not events:
            return np.zeros(0)
        events[-1].synchronize()
        return np.array([1e6 * events[0].elapsed_time(event) for event in events])


class NoClock:
    """Stands in where times are not due."""

    def mark(self) -> int:
        """Nothing to note."""
        return 0

    def read(self) -> Nanoseconds:
        """Nothing to tell."""
        return np.zeros(0)
