"""When the recorder's thread does what: each task by its own period, and as few wakes as that allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ...wire import Document, Event, Gap

_TOGETHER_S: Final = 0.05
"""What is due so soon is done in the same wake."""
_LONGEST_S: Final = 1.0
_GRID_S: Final = 0.25


class Watch(Protocol):
    """A task of the recorder's thread that looks at the training; no method raises."""

    @property
    def period_s(self) -> float:
        """Seconds until the next look; asked after each one."""
        ...

    def look(self) -> Sequence[Event | Document | Gap]:
        """Called on the recorder's thread; returns what is to be written."""
        ...

    def close(self) -> Sequence[Event | Document | Gap]:
        """Called once, on the thread, after the last look; what is to be written before the run's end."""
        ...


class Schedule:
    """Tasks by key, and when each is due; used on one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s: dict[object, float] = {}

    def is_due(self, task: object) -> bool:
        """Whether a task's time has come; one that was never done is due."""
        return self._due_s.get(task, 0.0) <= self._clock() + _TOGETHER_S

    def again(self, task: object, period_s: float) -> None:
        """A task has been done: have it done again after its period, at the latest.

        Periods that are multiples of `_GRID_S` end together, whenever their tasks were begun.
        """
        now_s = self._clock()
        due_s = now_s + period_s
        if period_s > 0 and (period_s / _GRID_S).is_integer():
            # What was done a little early has been done for the end that is just coming.
            due_s = (now_s + _TOGETHER_S + period_s) // period_s * period_s
        self._due_s[task] = due_s

    def forget(self, task: object) -> None:
        """It is not to be done any more."""
        self._due_s.pop(task, None)

    @property
    def wait_s(self) -> float:
        """How long to sleep until the first task is due."""
        first_s = min(self._due_s.values(), default=0.0)
        return min(max(first_s - self._clock(), 0.0), _LONGEST_S)

    @staticmethod
    def early_s(wait_s: float) -> float:
        """How much earlier than after such a sleep tasks may be done, where that is a better time."""
        return min(_TOGETHER_S, wait_s / 4.0)
