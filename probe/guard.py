"""The one guard round everything of ours that runs inside a training loop, and the clock that times it.

A failure of the probe is caught here, counted, logged once per part, and switches that part off: it never
reaches the user's code. Used on one thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

_logger = logging.getLogger(__name__)
_clock_ns = time.thread_time_ns
"""The thread's own CPU time: a wall clock would blame the probe for what other processes take."""
_brief_clock_ns = time.perf_counter_ns
_BRIEF_NS: Final = 200_000
"""What a brief call took beyond this, something else took."""
_FAILED: Final = "nanscope: %s failed and is switched off for this run; training goes on"
P = ParamSpec("P")
R = TypeVar("R")


def outcome_of(
    function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> tuple[R | None, Exception | None]:
    """Call what may raise anything, as code of the user's may; return what it returned, and what it raised.

    For any thread, where nothing is timed or the caller does it; inside a training step see `Guard.attempt`.
    """
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001 - the caller says what it means
        return None, error


class Guard:
    """Runs the probe's own code: isolates its failures and adds up its time.

    Attributes:
        spent_ns: nanoseconds of CPU time spent inside guarded calls since the start.
    """

    def __init__(self) -> None:
        self.spent_ns = 0
        self._off: set[str] = set()
        self._failed: list[str] = []
        self._depth = 0
        self._entered_ns: int | None = None

    def for_thread(self) -> Guard:
        """Return a guard for another thread: with a clock of its own; what fails on one is off on both."""
        guard = Guard()
        guard._off, guard._failed = self._off, self._failed
        return guard

    @property
    def failures(self) -> int:
        """How many calls failed since the start."""
        return len(self._failed)

    def spent_so_far_ns(self) -> int:
        """Like `spent_ns`, with the call that is under way."""
        entered_ns = self._entered_ns
        running = 0 if entered_ns is None else _clock_ns() - entered_ns
        return self.spent_ns + max(running, 0)

    def run(self, part: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call `function`; None when it failed, now or earlier (the part is then off for good)."""
        if part in self._off:
            return None
        # Not kept here alone: a signal's handler, or the garbage collector, may come here in between.
        entered_ns = None if self._depth else _clock_ns()
        self._entered_ns = self._entered_ns if entered_ns is None else entered_ns
        self._depth += 1
        try:
            return function(*args, **kwargs)
        except Exception:
            self._switch_off(part)
            _logger.exception(_FAILED, part)
            return None
        finally:
            self._depth -= 1
            if entered_ns is not None:
                self.spent_ns += max(_clock_ns() - entered_ns, 0)
                self._entered_ns = None

    def run_brief(self, part: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Like `run`, for what takes microseconds and happens thousands of times a step.

        Timed by the wall: asking for the thread's CPU time is a system call that can take as long.
        """
        if self._depth:
            return self.run(part, function, *args, **kwargs)
        if part in self._off:
            return None
        self._depth, started_ns = 1, _brief_clock_ns()
        try:
            return function(*args, **kwargs)
        except Exception:
            self._switch_off(part)
            _logger.exception(_FAILED, part)
            return None
        finally:
            self._depth = 0
            self.spent_ns += min(_brief_clock_ns() - started_ns, _BRIEF_NS)

    def attempt(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R | None, Exception | None]:
        """Call a function of the user's; return what it returned, and what it raised. Timed like ours."""
        # Not kept here alone: a signal's handler, or the garbage collector, may come here in between.
        entered_ns = None if self._depth else _clock_ns()
        self._entered_ns = self._entered_ns if entered_ns is None else entered_ns
        self._depth += 1
        try:
            return function(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001 - the user's code runs in there
            return None, error
        finally:
            self._depth -= 1
            if entered_ns is not None:
                self.spent_ns += max(_clock_ns() - entered_ns, 0)
                self._entered_ns = None

    def _switch_off(self, part: str) -> None:
        self._failed.append(part)
        self._off.add(part)
