"""Walks over all objects of the process: made here alone, and within a share of the time.

Python has no other way to find what the script holds anywhere, a module or a generator, and one takes 40 to
90 ms where torch is loaded. On any thread; imports nothing of ours.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

_LIMIT: Final = 0.02
"""Until a session says what its limit is: that of the level basic."""
_FIRST_NS: Final = {"training": 200_000_000, "faults": 1_000_000_000}
"""CPU time of the first walks: those of any script are free, and a fault may take several."""
TOO_OFTEN: Final = "a search of all objects in the process would exceed the overhead limit"
"""Why something was not found: for an event."""
T = TypeVar("T")


class ObjectWalks:
    """The walks of one purpose: their CPU time is kept to half of the overhead limit.

    A walk may begin while there is credit, and takes what it takes: after a long one the next waits longer.

    Args:
        first_ns: CPU time that may be spent before any has been earned; never is more saved.
        without: what is lost where no walk is made.
        clock_ns: a clock that only goes forward, of which a share is earned.
        cpu_ns: the CPU time of the calling thread.
    """

    def __init__(
        self,
        first_ns: int,
        without: str,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._first_ns, self._without = first_ns, without
        self._clock_ns, self._cpu_ns = clock_ns, cpu_ns
        self.limit = _LIMIT
        self.reset()

    def reset(self) -> None:
        """Begin anew, with the first credit."""
        self._credit_ns, self._seen_ns = float(self._first_ns), self._clock_ns()
        self._is_declined = self._is_reported = False

    def take_declined(self) -> str:
        """Return, once, what is lost since a walk was declined; "" where none was."""
        if not self._is_declined or self._is_reported:
            return ""
        self._is_reported = True
        return self._without

    def everything(self) -> list[Any] | None:
        """Return all objects that Python's collector knows; None where that would cost too much now."""
        if not self._may_begin():
            return None
        with self._charged():
            return gc.get_objects()

    def instances(self, kinds: type[T] | tuple[type[T], ...]) -> list[T] | None:
        """Return the instances of some classes; None where looking for them would cost too much now.

        What was frozen (`gc.freeze`) is not among them.
        """
        if not self._may_begin():
            return None
        with self._charged():
            # By generation, so that the list of all objects is never there as a whole.
            parts = (gc.get_objects(generation) for generation in range(3))
            # Not `isinstance`, which asks the object and may run code of its own.
            return [one for part in parts for one in part if issubclass(type(one), kinds)]

    def has(self, value: object) -> bool | None:
        """Whether an object is in one of the collector's lists; None where that would cost too much now."""
        if not self._may_begin():
            return None
        with self._charged():
            young_first = (gc.get_objects(generation) for generation in range(3))
            return any(one is value for held in young_first for one in held)

    def _may_begin(self) -> bool:
        if not self.limit:
            return True
        now_ns = self._clock_ns()
        earned = (now_ns - self._seen_ns) * self.limit / len(_FIRST_NS)
        self._credit_ns, self._seen_ns = min(self._credit_ns + earned, self._first_ns), now_ns
        self._is_declined = self._is_declined or self._credit_ns <= 0
        return self._credit_ns > 0

    @contextmanager
    def _charged(self) -> Iterator[None]:
        started_ns = self._cpu_ns()
        try:
            yield
        finally:
            self._credit_ns -= self._cpu_ns() - started_ns


training: Final = ObjectWalks(
    _FIRST_NS["training"], "further models and optimizers are only found where they are in use"
)
"""Walks that a healthy training asks for: what holds an optimizer's parameters, whether there is one."""
faults: Final = ObjectWalks(_FIRST_NS["faults"], "the origin of further faults may stay unknown")
"""Walks that explain a fault, or that a person's call asks for."""


def keep_to(limit: float) -> None:
    """Follow a session's overhead limit: a share of the time, 0 for none. Each purpose gets half of it."""
    training.limit = faults.limit = limit


def declined() -> list[str]:
    """Return, once for each purpose, what is lost since walks of it were declined."""
    return [lost for walks in (training, faults) if (lost := walks.take_declined())]
