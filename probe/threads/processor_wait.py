"""How much of its time the training waits for a processor that other programs have.

Linux counts for each thread the time in which it was ready to run and another one ran instead. Called by the
recorder about once a second, on its thread; nothing here judges. Elsewhere than on Linux nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_LOOK_EVERY_S: Final = 0.9
"""A look reads a file of each thread, about 10 us each."""
_MOST_THREADS: Final = 32
_MOST_WORKERS: Final = 16
_KEPT: Final = 120
"""Looks."""
_BYTES: Final = 64


class ProcessorWait:
    """Follows the waiting of this process's threads, and of the workers that load its data.

    Args:
        processes: folder with a folder for each process, as `/proc`.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, processes: Path = _PROCESSES, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes, self._clock = processes, clock
        self._looked_at: float | None = None
        self._waited_ns: dict[str, dict[str, int]] = {}
        self._readings: tuple[tuple[float, float], ...] = ()
        """When each was taken, and its share, oldest first."""

    def share(self, seconds: float = 0.0) -> float:
        """Return the share (0-1) of the last seconds in which no thread had to wait; 1 if unknown.

        Args:
            seconds: how far back, up to two minutes; the newest look counts in any case. From any thread.
        """
        readings = self._readings
        if not readings:
            return 1.0
        newest = readings[-1][0]
        counted = [share for taken, share in readings if taken > newest - seconds] or [readings[-1][1]]
        return sum(counted) / len(counted)

    def look(self) -> None:
        """Read how long the threads have waited since the last look; to be called about once a second.

        Threads that compute together wait for each other at the end of each op, so that one's wait for a
        processor is all the others' idleness: the waits are added up. With two threads on two processors and
        one other program, steps of 5.3 ms took 16.8, and 5.7 without the sum of the waits (10.9 without the
        longer one). Of the workers that load data, the one that waits longest counts.
        """
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY_S:
            return
        before, self._waited_ns = self._waited_ns, self._read()
        if self._looked_at is not None:
            grown = {
                process: sum(
                    waited - before[process].get(thread, waited) for thread, waited in threads.items()
                )
                for process, threads in self._waited_ns.items()
                if process in before
            }
            waited_s = (grown.pop("self", 0) + max(grown.values(), default=0)) / 1e9
            share = min(max(1.0 - waited_s / (now - self._looked_at), 0.0), 1.0)
            self._readings = (*self._readings[1 - _KEPT :], (now, share))
        self._looked_at = now

    def _read(self) -> dict[str, dict[str, int]]:
        return {process: _waited_ns(self._processes / process / "task") for process in ("self", *_workers())}


def _workers() -> list[str]:
    """Return the numbers of the processes that multiprocessing has started here, as a loader does."""
    module = sys.modules.get("multiprocessing.process")
    # `active_children()` would collect those that have ended: the script may wait for them itself.
    started = list(getattr(module, "_children", ()))
    return [str(worker.pid) for worker in started[:_MOST_WORKERS]]


def _waited_ns(threads: Path) -> dict[str, int]:
    """Return for each thread how long it has waited so far; empty where the system does not count that."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        # The oldest ones: torch starts its own when it first computes.
        folders = sorted(threads.iterdir(), key=lambda folder: (len(folder.name), folder.name))
        for folder in folders[:_MOST_THREADS]:
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
                found[folder.name] = _second_number(folder / "schedstat")
    return found


def _second_number(file: Path) -> int:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, _BYTES).split()[1])
    finally:
        os.close(descriptor)
