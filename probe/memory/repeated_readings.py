"""Growth of memory from one reading of a place in the script to the next: what `profile_memory` suspects.

A place is a label without its numbers: `batch_12` and `batch_13` are one. Judged by `detectors/memory.py`:
growth over two whole windows of readings that goes on; what is freed again, or grows at the start alone, is
none. Any thread.
"""

from __future__ import annotations

import re
import threading
import time
from typing import Final

from ..compat.torch_cuda import devices_in_use
from ..delivery.host_memory import read_memory
from ..detectors.memory import BLOCK, WINDOW, Growth, GrowthDetector
from ..wire.findings import size_text
from .heap_meter import own_bytes
from .process_memory import read_device

_MIB: Final = 2**20
_FLOOR: Final = 4.0 * _MIB
"""Growth of less than this over a window of 16 readings is none."""
_PLACES: Final = 256
_NUMBERS: Final = re.compile(r"[\W_]*\d+")


class _Series:
    """Readings of one place and one sort of memory, and what is suspected at present."""

    def __init__(self) -> None:
        self._detector = GrowthDetector(floor=_FLOOR)
        self._growth: Growth | None = None
        self._count = self._began_at = self._found_at = 0
        self._is_sure = False

    def add(self, value: float, time_s: float) -> Growth | None:
        """Take a reading; return growth that two windows in a row have shown, and that goes on."""
        growth = self._detector.add(self._count, time_s, value)
        if growth is not None and growth.keeps_pace:
            if self._growth is None:
                self._began_at = self._count
            self._growth, self._found_at = growth, self._count
        elif self._growth is not None and self._count - self._found_at >= _length(self._growth):
            self._growth, self._is_sure = None, False
        self._count += 1
        # One window alone may be scatter: the other one begins where that has ended.
        if self._growth is not None and self._found_at - self._began_at >= _length(self._growth):
            self._is_sure = True
        return self._growth if self._is_sure else None


def _length(growth: Growth) -> int:
    """Readings of the window in which it was found."""
    return WINDOW * int(BLOCK**growth.scale)


class RepeatedReadings:
    """The series of all places, the newest 256 of them."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], _Series] = {}
        self._lock = threading.Lock()

    def add(self, label: str, sizes: dict[str, float], *, time_s: float) -> list[str]:
        """Take a reading of each sort of memory at a place.

        Args:
            label: of the place.
            sizes: bytes, by what they are called.
            time_s: of a clock that goes forward.

        Returns:
            A sentence for each sort that has grown all along and still does.
        """
        place, found = place_of(label), []
        with self._lock:
            for name, value in sizes.items():
                series = self._series.pop((place, name), None) or _Series()
                self._series[place, name] = series
                if (growth := series.add(value, time_s)) is not None:
                    found.append(_sentence(place, name, growth))
            while len(self._series) > 2 * _PLACES:
                del self._series[next(iter(self._series))]
        return found


def place_of(label: str) -> str:
    """Return a label without its numbers and what stands before them: `batch` of `batch_12`."""
    return _NUMBERS.sub("", label) or label


def read_sizes() -> dict[str, float]:
    """Read the bytes in which a leak would show: the process's own pages, and what tensors hold on CUDA."""
    sizes: dict[str, float] = {}
    own = own_bytes()
    if own is None and (sample := read_memory()) is not None:
        own = float(sample.rss_bytes)
    if own is not None:
        sizes["process memory"] = own
    if devices := devices_in_use():
        sizes["CUDA memory"] = float(sum(read_device(one).allocated_bytes for one in devices))
    return sizes


def suspect(label: str) -> list[str]:
    """Read now, at this place, and return what is suspected there."""
    return _readings.add(label, read_sizes(), time_s=time.monotonic())


def _sentence(place: str, name: str, growth: Growth) -> str:
    at = f" at {place!r}" if place else ""
    return (
        f"{name} grows{at}: by {size_text(growth.bytes_per_step)} from call to call, "
        f"{size_text(growth.grown)} so far, over {growth.total_steps + 1:,} calls"
    )


_readings: Final = RepeatedReadings()
