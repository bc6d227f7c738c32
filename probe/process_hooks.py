"""What sessions need of the process: its exit, its uncaught exceptions and its forks.

Used by `session.py` alone. Callbacks run on the thread that exits, fails or forks.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


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
        report: Callable[[BaseException, TracebackType | None], None],
        close: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        self._report, self._close, self._abandon = report, close, abandon
        self._previous_hook: Callable[..., Any] | None = None
        self._registered = False
        self._pid_with_finalizer: int | None = None

    def watch_over(self) -> None:
        """Chain `sys.excepthook`; close sessions at exit and silence them in forked children."""
        if self._previous_hook is None:
            self._previous_hook = sys.excepthook
            sys.excepthook = self._excepthook
        if not self._registered:
            self._registered = True
            atexit.register(self._close)
            # Cannot be unregistered, so it is registered once and looks at what runs at the time.
            os.register_at_fork(after_in_child=self._abandon)
        if multiprocessing.parent_process() is not None and self._pid_with_finalizer != os.getpid():
            # A forked child of multiprocessing leaves through `os._exit`, past all of `atexit`.
            self._pid_with_finalizer = os.getpid()
            multiprocessing.util.Finalize(None, self._close_child, exitpriority=0)

    def release(self) -> None:
        """Put `sys.excepthook` back if nobody has wrapped ours since."""
        if self._previous_hook is not None and sys.excepthook == self._excepthook:
            sys.excepthook = self._previous_hook
            self._previous_hook = None

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._report(error, trace)
        (self._previous_hook or sys.__excepthook__)(kind, error, trace)

    def _close_child(self) -> None:
        """At the end of a process of multiprocessing, which may have raised."""
        error = sys.exc_info()[1]
        if error is not None:
            self._report(error, error.__traceback__)
        self._close()
