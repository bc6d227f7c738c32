"""Bytes in use now: of malloc's heap, of the CUDA allocator, of the process's own pages. Reads only.

Used by the leak watch on the training thread. Unlike resident memory, what an allocator has handed out does
not scatter: at the same place of two steps of a healthy loop it differs by some hundred bytes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from ..compat import torch_memory
from ..guard import is_from_signal
from .memory_limit import MemoryUse

_SHARE: Final = 10_000
"""A meter waits this many times as long as its reading took: 0.01 % of the time at most ..."""
_RISING_SHARE: Final = 2000
_RISING_READINGS: Final = 4
"""... 0.05 % for some readings where there is more in use than ever before: a leak that begins late is found
12 s after it has begun where a reading takes 0.5 ms, not 55 s ..."""
_EARLY_SHARE: Final = 200
_EARLY_READINGS: Final = 256
_EARLY_NS: Final = 30 * 10**9
"""... and 0.5 % at first: a run of some hundred steps has to show its leaks, too."""
_FIRST_READINGS: Final = 128
_FIRST_NS: Final = 300_000
"""The very first are taken at every step, as long as a reading takes no longer than this in CPU time ..."""
_FIRST_SHARE: Final = 50
"""... and those that do for 2 % of the time, until all of them have taken as long as so many quick ones: a
training of a second has to show its leaks on a busy machine, too, where the same reading takes longer."""
_SLOW_READING_NS: Final = 3_000_000
_MAX_SLOW_READINGS: Final = 3
"""In a row; a single one may have been held up."""
_STATM: Final = Path("/proc/self/statm")


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split())
    ]


def heap_reader() -> Callable[[], float] | None:
    """Return what reads the bytes that malloc has handed out; None where the C library does not tell.

    Tensors on the CPU and numpy's arrays are among them. Another malloc put in glibc's place (jemalloc) reads
    as 0 and counts as none.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    mallinfo2.restype = _Mallinfo2
    mallinfo2.argtypes = ()

    def read() -> float:
        info = mallinfo2()
        return float(info.uordblks + info.hblkhd)

    return read if read() > 0 else None


def cuda_reader() -> Callable[[], float] | None:
    """Return what reads the bytes of live tensors on the current CUDA device; None without one in use."""
    if not torch_memory.cuda_is_initialised():
        return None
    return lambda: float(torch.cuda.memory_allocated())


def device_use() -> MemoryUse | None:
    """Return what is used of the current CUDA device, by all processes; None without one in use."""
    if not torch_memory.cuda_is_initialised():
        return None
    free, total = torch.cuda.mem_get_info()
    return MemoryUse(float(total - free), float(total))


def own_bytes() -> float | None:
    """Resident bytes that no file lies behind: memory-mapped data sets are read into pages that can go."""
    try:
        _, resident, shared = _STATM.read_bytes().split()[:3]
    except (OSError, ValueError) as error:
        if is_from_signal(error):
            raise
        return None
    return float((int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE"))


class HeapMeter:
    """Reads the heap; gives it up where that is slow: malloc counts its free pieces, one by one, each time.

    From then on growth of the process's own pages is what makes the watch look.

    Args:
        read: returns the bytes in use; None where nothing tells them.

    Attributes:
        can_read: whether there is something to read.
    """

    def __init__(self, read: Callable[[], float] | None) -> None:
        self._read = read
        self.can_read = read is not None
        self._slow_readings = 0
        """In a row."""

    def read(self) -> float | None:
        """Return the bytes in use; None where they cannot be read."""
        if self._read is None or not self.can_read:
            return None
        cpu_ns = time.thread_time_ns()
        value = self._read()
        is_slow = time.thread_time_ns() - cpu_ns > _SLOW_READING_NS
        self._slow_readings = self._slow_readings + 1 if is_slow else 0
        self.can_read = self._slow_readings < _MAX_SLOW_READINGS
        return value


class Highest:
    """The most that was ever in use, by place.

    Args:
        floor: less than this many bytes more is the same.
    """

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._highest: dict[str, float] = {}

    def add(self, place: str, value: float) -> bool:
        """Whether so much was never in use before."""
        if value <= self._highest.get(place, 0.0) + self._floor:
            return False
        self._highest[place] = value
        return True


class Pacer:
    """When a reading is to be taken again, so that readings take no more than their share of the time."""

    def __init__(self) -> None:
        self.next_ns = 0
        """Earliest time of the next turn, on the clock of `time.perf_counter_ns`."""
        self._turns = 0
        self._hurried = 0
        """Turns to come that are not put off for long."""
        self._early_until_ns = 0
        self._first_left_ns = _FIRST_READINGS * _FIRST_NS
        """What the very first turns may still take."""

    def note(self, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
        """It was done.

        Args:
            started_ns: when it began, by `time.perf_counter_ns`.
            took_ns: how long it took, by the thread's CPU time.
            is_rising: whether more is in use than at any turn before.
        """
        self._turns += 1
        self._hurried = _RISING_READINGS if is_rising else max(self._hurried - 1, 0)
        if self._turns == 1:
            self._early_until_ns = started_ns + _EARLY_NS
        is_early = self._turns < _EARLY_READINGS and started_ns < self._early_until_ns
        self._first_left_ns -= took_ns
        is_first = is_early and self._turns < _FIRST_READINGS and self._first_left_ns > 0
        if is_first and took_ns <= _FIRST_NS:
            self.next_ns = started_ns
            return
        later = _RISING_SHARE if self._hurried else _SHARE
        share = _FIRST_SHARE if is_first else _EARLY_SHARE if is_early else later
        self.next_ns = started_ns + share * max(took_ns, 1000)
