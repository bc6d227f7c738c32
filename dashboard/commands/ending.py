"""A command that is ended by a signal: what it has open is closed and removed, and it says one line.

The handlers raise, so that every `with` and `finally` is left in order. DuckDB, among others, makes an
exception of its own out of that, which is why the signal is kept, too. Main thread only.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class EndedError(BaseException):
    """A signal has ended the command; no part of it may go on, so it is no `Exception`."""


@dataclass(slots=True)
class Ending:
    """Which signal has ended the command."""

    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """As a shell has it; 0 without a signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """Have SIGTERM, SIGHUP and SIGINT raise, each once: a second one ends the process as the system does.

    What ignores a signal (`nohup`) or has a handler of its own keeps it.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return

    def end(number: int, frame: FrameType | None) -> None:
        ending.signal = signal.Signals(number)
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        raise KeyboardInterrupt if number == signal.SIGINT else EndedError

    def say_unraisable(found: Any) -> None:
        if not isinstance(found.exc_value, EndedError | KeyboardInterrupt):
            hook(found)

    before = {one: signal.getsignal(one) for one in ENDING if signal.getsignal(one) in _DEFAULTS}
    hook = sys.unraisablehook
    sys.unraisablehook = say_unraisable
    for one in before:
        signal.signal(one, end)
    try:
        yield ending
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        sys.unraisablehook = hook


_DEFAULTS: Final = (signal.SIG_DFL, signal.default_int_handler)
