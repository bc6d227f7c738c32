"""How much of its time the training waits for a processor that other programs have.

Linux counts for each thread the time in which it was ready to run and another one ran instead. Called by the
recorder about once a second, on its thread; nothing here judges. Elsewhere than on Linux nothing is known.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ..guard import suppressed

_PROCESSES: Final = Path("/proc")
_LOOK_EVERY_S: Final = 0.9
"""A look reads a file of each thread, about 10 us each."""
_MOST_THREADS: Final = 32
_MOST_WORKERS: Final = 16
_KEPT: Final = 120
"""Looks."""
_BYTES: Final = 64
_FIRST_EVERY_S: Final = 0.1
_ALONE: Final = 0.05
"""Where all other threads together run for less than this part of what one does, it computes alone."""


class _Times(NamedTuple):
    """Of a thread."""

    ran_ns: int
    waited_ns: int
    """Ready to run, while another one ran."""


_Reading: TypeAlias = dict[str, dict[str, _Times]]
"""By process and thread."""


class ProcessorWait:
    """Follows the waiting of this process's threads, and of the workers that load its data.

    Args:
        processes: folder with a folder for each process, as `/proc`.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, processes: Path = _PROCESSES, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes, self._clock = processes, clock
        self._looked_at: float | None = None
        self._times: _Reading = {}
        self._first = 0.0, 1.0
        """The newest reading before the second look, and when it was taken."""
        self._readings: tuple[tuple[float, float], ...] = ()
        """When each was taken, and its share, oldest first."""

    def share(self, seconds: float = 0.0) -> float:
        """Return the share (0-1) of the last seconds in which no thread had to wait; 1 if unknown.

        Args:
            seconds: how far back, up to two minutes; the newest look counts in any case. From any thread.
        """
        readings = self._readings
        if not readings:
            return self._first_share()
        newest = readings[-1][0]
        counted = [share for taken, share in readings if taken > newest - seconds] or [readings[-1][1]]
        return sum(counted) / len(counted)

    def _first_share(self) -> float:
        """The share until the second look: with the first steps all later ones are compared."""
        looked_at, now = self._looked_at, self._clock()
        if looked_at is not None and now - max(looked_at, self._first[0]) >= _FIRST_EVERY_S:
            self._first = now, _share(self._times, self._read(), now - looked_at)
        return self._first[1]

    def look(self) -> None:
        """Read how long the threads have waited since the last look; to be called about once a second.

        Threads that compute together wait for each other at the end of each op, so that one's wait for a
        processor is all the others' idleness: the waits are added up. With two threads on two processors and
        one other program, steps of 5.3 ms took 16.8, and 5.7 without the sum of the waits (10.9 without the
        longer one). Of the workers that load data, the one that waits longest counts. The thread that looks
        is not one that the training waits for. Where one thread alone computes, the time for which it ran
        is certain: beside many programs the waits of the others would come to more than is left.
        """
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY_S:
            return
        before, self._times = self._times, self._read()
        if self._looked_at is not None:
            looker = str(threading.get_native_id())
            share = _share(before, self._times, now - self._looked_at, without=looker)
            self._readings = (*self._readings[1 - _KEPT :], (now, share))
        self._looked_at = now

    def _read(self) -> _Reading:
        return {process: _times_of(self._processes / process / "task") for process in ("self", *_workers())}


def _share(before: _Reading, now: _Reading, passed_s: float, *, without: str = "") -> float:
    """Return the share of the time between two readings, as far as threads are concerned but one."""
    grown = {
        process: _grown(before[process], threads, without=without if len(threads) > 1 else "")
        for process, threads in now.items()
        if process in before
    }
    own = grown.pop("self", [])
    waits = [sum(times.waited_ns for times in threads) for threads in grown.values()]
    waited_s = (sum(times.waited_ns for times in own) + max(waits, default=0)) / 1e9
    return min(max(1.0 - waited_s / passed_s, _ran_alone_s(own) / passed_s, 0.0), 1.0)


def _grown(before: dict[str, _Times], now: dict[str, _Times], *, without: str) -> list[_Times]:
    """What each thread ran and waited since; of one that is new nothing is known."""
    known = [(before[name], times) for name, times in now.items() if name in before and name != without]
    return [_Times(new.ran_ns - old.ran_ns, new.waited_ns - old.waited_ns) for old, new in known]


def _ran_alone_s(threads: list[_Times]) -> float:
    """How long the one thread ran that computes; 0 where several do: they may run while they wait."""
    ran = sorted((times.ran_ns for times in threads), reverse=True)
    is_alone = bool(ran) and sum(ran[1:]) <= _ALONE * ran[0]
    return ran[0] / 1e9 if is_alone else 0.0


def _workers() -> list[str]:
    """Return the numbers of the processes that multiprocessing has started here, as a loader does."""
    module = sys.modules.get("multiprocessing.process")
    # `active_children()` would collect those that have ended: the script may wait for them itself.
    started = list(getattr(module, "_children", ()))
    return [str(worker.pid) for worker in started[:_MOST_WORKERS]]


def _times_of(threads: Path) -> dict[str, _Times]:
    """Return for each thread what it ran and waited so far; empty where the system does not count."""
    found: dict[str, _Times] = {}
    with suppressed(OSError):
        # The oldest ones: torch starts its own when it first computes.
        folders = sorted(threads.iterdir(), key=lambda folder: (len(folder.name), folder.name))
        for folder in folders[:_MOST_THREADS]:
            with suppressed(OSError, ValueError, IndexError):  # a thread may end meanwhile
                found[folder.name] = _read_times(folder / "schedstat")
    return found


def _read_times(file: Path) -> _Times:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ran, waited, *_ = os.read(descriptor, _BYTES).split()
        return _Times(int(ran), int(waited))
    finally:
        os.close(descriptor)
