"""`paced_leaks.py LOOP...`: loops of `test_leaks_plain.py` with steps of 15 ms; prints what was named.

A program of its own: what pytest holds takes a look at the heap a second, of which a training has nothing.
A step is as long as a fixed piece of work, some 15 ms: a machine on which looks take longer has longer steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch

for _folder in (Path(__file__).parents[2], Path(__file__).parent):
    sys.path.insert(0, str(_folder))

from test_leaks_plain import STEPS, Loop, healthy, leaking  # noqa: E402

from probe.memory.heap_meter import heap_reader  # noqa: E402
from probe.memory.leak_watch import LeakWatch  # noqa: E402
from probe.memory.time_slices import LookBudget  # noqa: E402

WORKS = 150
KNOWN = {number: (number,) for number in range(700)}


def work_ns() -> int:
    """CPU time of a piece of work like that of a look, 0.1 ms."""
    started_ns = time.thread_time_ns()
    seen = {}
    for number in KNOWN:
        if id(number) not in seen:
            seen[id(number)] = type(KNOWN[number])
    return time.thread_time_ns() - started_ns


class PacedLoop(Loop):
    """Readings and slices of looks wait for their share of the time, by a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10**12
        self._works: deque[int] = deque(maxlen=25)
        self.watch = LeakWatch(
            clock_ns=self._now,
            read_heap=heap_reader(),
            budget=LookBudget(clock_ns=self._now, lived_ns=5 * 10**9),
        )

    def _now(self) -> int:
        return self.now_ns

    def steps(self, count: int = STEPS) -> Iterator[int]:
        # Twice as many: on a busy machine slices take longer, and wait longer for their share.
        for number in super().steps(2 * count):
            self._works.append(work_ns())
            self.now_ns += WORKS * int(statistics.median(self._works))
            yield number


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    named = {}
    for run in (run for run in [*leaking(), *healthy()] if run.__name__ in sys.argv[1:]):
        loop = PacedLoop()
        expected = run(loop)
        named[run.__name__] = expected, [incident.finding.subject for incident in loop.found]
    print(json.dumps(named))


if __name__ == "__main__":
    main()
