"""How much of its time the training waits for a processor that other programs have.

Linux counts for each thread the time in which it was ready to run and another one ran instead. Called by the
sample judge, on any one thread; nothing here judges. Elsewhere than on Linux nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_THREADS: Final = Path("/proc/self/task")
_LOOK_EVERY_S: Final = 1.0
"""A look reads a file of each thread, about 10 us each."""
_MOST_THREADS: Final = 32
_BYTES: Final = 64


class ProcessorWait:
    """Follows the waiting of this process's threads.

    Args:
        threads: folder with a folder for each thread, as in `/proc/self/task`.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, threads: Path = _THREADS, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads, self._clock = threads, clock
        self._looked_at: float | None = None
        self._waited_ns: dict[str, int] = {}
        self._share = 1.0

    def share(self) -> float:
        """Return the share (0-1) of the newest second or more in which no thread had to wait; 1 if unknown.

        Threads that compute together wait for the one that waits longest, so that one counts.
        """
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY_S:
            return self._share
        before, self._waited_ns = self._waited_ns, _waited_ns(self._threads)
        if self._looked_at is not None:
            grown = (waited - before[name] for name, waited in self._waited_ns.items() if name in before)
            waited_s = max(grown, default=0) / 1e9
            self._share = min(max(1.0 - waited_s / (now - self._looked_at), 0.0), 1.0)
        self._looked_at = now
        return self._share


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
