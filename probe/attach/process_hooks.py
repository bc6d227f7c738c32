"""What sessions need of the process: its exit, its uncaught exceptions (its threads' too) and its forks.

Used by `session.py` alone. Callbacks run on the thread that exits, fails or forks.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from ..guard import finish_beside_signals


class Report(Protocol):
    """Is told of an exception that leaves the script, or a thread of it."""

    def __call__(
        self, error: BaseException, trace: TracebackType | None, *, of_this_thread: bool = False
    ) -> None:
        """Record it in every session, or in those that train on the calling thread."""
        ...


class ProcessHooks:
    """Hooks into the process, made once and for all sessions.

    Args:
        report: is told of an exception that leaves the script.
        close: ends every session, in an orderly way.
        abandon: silences every session, in a forked child.
    """

    def __init__(
        self,
        *,
        report: Report,
        close: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        self._report, self._close, self._abandon = report, close, abandon
        self._previous_hook: Callable[..., Any] | None = None
        self._previous_of_threads: Callable[..., Any] | None = None
        self._known: BaseException | None = None
        """What the interpreter had printed before there was a session."""
        self._is_interrupted = False
        """Whether a Ctrl-C has ended the script."""
        self._registered = False
        self._pid_with_finalizer: int | None = None

    def watch_over(self) -> None:
        """Chain the hooks of exceptions; close sessions at exit and silence them in forked children."""
        if self._previous_hook is None:
            self._previous_hook = sys.excepthook
            sys.excepthook = self._excepthook
            self._known = getattr(sys, "last_value", None)
        if self._previous_of_threads is None:
            self._previous_of_threads = threading.excepthook
            threading.excepthook = self._excepthook_of_threads
        if not self._registered:
            self._registered = True
            atexit.register(self._at_exit)
            # Cannot be unregistered, so it is registered once and looks at what runs at the time.
            os.register_at_fork(after_in_child=self._abandon)
        if multiprocessing.parent_process() is not None and self._pid_with_finalizer != os.getpid():
            # A forked child of multiprocessing leaves through `os._exit`, past all of `atexit`.
            self._pid_with_finalizer = os.getpid()
            multiprocessing.util.Finalize(None, self._close_child, exitpriority=0)

    def release(self) -> None:
        """Put back each hook that nobody has wrapped since."""
        if self._previous_hook is not None and sys.excepthook == self._excepthook:
            sys.excepthook = self._previous_hook
            self._previous_hook = None
        if self._previous_of_threads is not None and threading.excepthook == self._excepthook_of_threads:
            threading.excepthook = self._previous_of_threads
            self._previous_of_threads = None

    def _at_exit(self) -> None:
        """Close all. A script may have put a hook of its own in the place of ours: the interpreter has kept
        what it told that one."""
        error = getattr(sys, "last_value", None)
        is_replaced = self._previous_hook is not None and sys.excepthook != self._excepthook
        is_replaced = is_replaced and not hasattr(sys, "ps1")
        try:
            if is_replaced and isinstance(error, BaseException) and error is not self._known:
                self._is_interrupted = type(error) is KeyboardInterrupt
                finish_beside_signals(self._report, error, error.__traceback__)
        finally:
            self._close()
            if self._is_interrupted:
                _end_by_interrupt()

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # A script that calls the hook itself goes on; so does a prompt.
        is_last = getattr(sys, "last_value", None) is error and not hasattr(sys, "ps1")
        self._is_interrupted = is_last and kind is KeyboardInterrupt
        struck = finish_beside_signals(self._report, error, trace)
        (self._previous_hook or sys.__excepthook__)(kind, error, trace)
        if struck is not None and not isinstance(struck, Exception):
            raise struck  # a handler's `sys.exit`

    def _excepthook_of_threads(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            self._report(args.exc_value, args.exc_traceback, of_this_thread=True)
        (self._previous_of_threads or threading.__excepthook__)(args)

    def _close_child(self) -> None:
        """At the end of a process of multiprocessing, which may have raised."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code:
            # As torch.multiprocessing ends a process that has raised.
            error = error.__context__
        try:
            if error is not None:
                self._report(error, error.__traceback__)
        finally:
            self._close()


def _end_by_interrupt() -> None:
    """Have the interpreter end the process by SIGINT, as it does after a Ctrl-C that nobody catches.

    It forgets that with each string that is executed afterwards: a dataclass of a module that is first
    imported while sessions close has several. One that raises brings it back.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")  # noqa: S102 - a constant
