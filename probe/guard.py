"""The one guard round everything of ours that runs inside a training loop, and the clock that times it.

A failure of the probe is caught here, counted, logged once per part, and switches that part off: it never
reaches the user's code. Used on one thread only.

A signal handler may raise at any bytecode, also in the middle of our code: torch's does when a worker of a
DataLoader dies. Such an exception is the user's, and passes through all of this.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, ParamSpec, TypeVar

_logger = logging.getLogger(__name__)
_clock_ns = time.thread_time_ns
"""The thread's own CPU time: a wall clock would blame the probe for what other processes take."""
_brief_clock_ns = _wall_ns = time.perf_counter_ns
_BRIEF_NS: Final = 200_000
"""What a brief call took beyond this, something else took."""
_FAILED: Final = "nanscope: %s failed and is switched off for this run; training goes on"
P = ParamSpec("P")
R = TypeVar("R")


_AGAIN: Final = 10
"""How often something is begun that signal handlers break off."""


def is_from_signal(error: BaseException | None) -> bool:
    """Whether a signal handler has raised it, and not the code that the handler interrupted.

    The interpreter calls a handler with the signal's number and the frame that it interrupts. So the
    traceback has a function that was given its own caller's frame, behind a number.
    """
    trace = None if error is None else error.__traceback__
    while trace is not None and (inner := trace.tb_next) is not None:
        if _is_handler(inner.tb_frame, trace.tb_frame):
            return True
        trace = inner
    return False


def is_scripts(error: BaseException) -> bool:
    """Whether what our code has raised is to reach the script: no failure of ours, but a signal."""
    return not isinstance(error, Exception) or is_from_signal(error)


def let_pass(error: BaseException) -> None:
    """Raise what a signal handler has raised, in an `except` that is meant for failures of ours.

    A TimeoutError of an alarm is an OSError, and torch raises a RuntimeError where a worker has died.
    """
    if is_from_signal(error):
        raise error


class suppressed(contextlib.suppress):  # noqa: N801 - named like what it stands for
    """As `contextlib.suppress`, but for what a signal handler has raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, trace)) and not is_from_signal(error)


def _is_handler(frame: FrameType, interrupted: FrameType) -> bool:
    given = inspect.getargvalues(frame)
    values = [*(given.locals.get(name) for name in given.args), *given.locals.get(given.varargs or "", ())]
    return any(it is interrupted and type(number) is int for number, it in itertools.pairwise(values))


def finish_beside_signals(
    function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> BaseException | None:
    """Call a function, again where a signal handler breaks it off; return what the last handler raised.

    For what has to be done and may be begun twice. Python's own handler of a Ctrl-C breaks off for good.
    """
    return _finish(lambda: function(*args, **kwargs), others=())


def finish_beside_interruptions(function: Callable[[], object]) -> BaseException | None:
    """As `finish_beside_signals`, at the end of the process: also beside a Ctrl-C."""
    return _finish(function, others=(KeyboardInterrupt, SystemExit))


def _finish(
    function: Callable[[], object], *, others: tuple[type[BaseException], ...]
) -> BaseException | None:
    struck = None
    for _ in range(_AGAIN):
        try:
            function()
        except BaseException as error:
            if not isinstance(error, others) and not is_from_signal(error):
                raise
            struck = error
        else:
            break
    return struck


def outcome_of(
    function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> tuple[R | None, Exception | None]:
    """Call what may raise anything, as code of the user's may; return what it returned, and what it raised.

    For any thread, where nothing is timed or the caller does it; inside a training step see `Guard.attempt`.
    """
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        if is_from_signal(error):
            raise
        return None, error


class _GradientMode:
    """torch's switch of the thread, where torch is loaded.

    Where a handler raises while a `torch.no_grad` begins or ends, nobody switches gradients on again.
    """

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        self.are_on: Callable[[], bool] = getattr(torch, "is_grad_enabled", bool)
        self.set: Callable[[bool], object] = getattr(torch, "set_grad_enabled", bool)


class Guard:
    """Runs the probe's own code: isolates its failures, adds up its time, keeps torch's gradient mode.

    Attributes:
        spent_ns: nanoseconds of CPU time spent inside guarded calls since the start.
        waited_ns: what they took beyond that, for a disk, a lock or a processor.
    """

    def __init__(self) -> None:
        self.spent_ns = self.waited_ns = 0
        self._off: set[str] = set()
        self._failed: list[str] = []
        self._depth = 0
        self._entered_ns: int | None = None
        self._began_ns = 0
        """When the outermost call under way began, by the wall."""
        self._gradients = _GradientMode()

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

    def waited_so_far_ns(self) -> int:
        """Like `waited_ns`, with the call that is under way."""
        entered_ns = self._entered_ns
        if entered_ns is None:
            return self.waited_ns
        return self.waited_ns + max(_wall_ns() - self._began_ns - (_clock_ns() - entered_ns), 0)

    @property
    def is_running(self) -> bool:
        """Whether a guarded call is under way; from any thread."""
        return self._depth > 0

    def run(self, part: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call `function`; None when it failed, now or earlier (the part is then off for good)."""
        if part in self._off:
            return None
        # Not kept here alone: a signal's handler, or the garbage collector, may come here in between.
        entered_ns = None if self._depth else self._enter()
        has_gradients = self._gradients.are_on()
        self._depth += 1
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if is_from_signal(error):
                raise
            self._switch_off(part)
            _logger.exception(_FAILED, part)
            return None
        finally:
            self._depth -= 1
            if entered_ns is not None:
                self._leave(entered_ns)
            if self._gradients.are_on() is not has_gradients:
                self._gradients.set(has_gradients)

    def run_brief(self, part: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Like `run`, for what takes microseconds and happens thousands of times a step.

        Timed by the wall: asking for the thread's CPU time is a system call that can take as long.
        """
        if self._depth:
            return self.run(part, function, *args, **kwargs)
        if part in self._off:
            return None
        has_gradients = self._gradients.are_on()
        self._depth, started_ns = 1, _brief_clock_ns()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if is_from_signal(error):
                raise
            self._switch_off(part)
            _logger.exception(_FAILED, part)
            return None
        finally:
            self._depth = 0
            self.spent_ns += min(_brief_clock_ns() - started_ns, _BRIEF_NS)
            if self._gradients.are_on() is not has_gradients:
                self._gradients.set(has_gradients)

    def attempt(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R | None, Exception | None]:
        """Call a function of the user's; return what it returned, and what it raised. Timed like ours."""
        # Not kept here alone: a signal's handler, or the garbage collector, may come here in between.
        entered_ns = None if self._depth else self._enter()
        self._depth += 1
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            if is_from_signal(error):
                raise
            return None, error
        finally:
            self._depth -= 1
            if entered_ns is not None:
                self._leave(entered_ns)

    def _enter(self) -> int:
        self._began_ns = _wall_ns()
        self._entered_ns = entered_ns = _clock_ns()
        return entered_ns

    def _leave(self, entered_ns: int) -> None:
        spent_ns = max(_clock_ns() - entered_ns, 0)
        self.spent_ns += spent_ns
        self.waited_ns += max(_wall_ns() - self._began_ns - spent_ns, 0)
        self._entered_ns = None

    def _switch_off(self, part: str) -> None:
        self._failed.append(part)
        self._off.add(part)
