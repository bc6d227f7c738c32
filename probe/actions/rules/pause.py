"""Holds the training thread until somebody continues it. The thread that waits is the one that trains."""

from __future__ import annotations

import threading
import time
from typing import Final

from ...threads.watchdog import pulse

_LOOK_S: Final = 0.2


class PauseGate:
    """Where the training thread waits."""

    def __init__(self) -> None:
        self._go_on = threading.Event()
        self._by = ""
        self._is_shut = False

    @property
    def is_shut(self) -> bool:
        """Whether the training thread waits here."""
        return self._is_shut

    def shut(self) -> None:
        """From now on `wait` waits; called before the pause is told of, so that an answer finds it shut."""
        self._by = ""
        self._go_on.clear()
        self._is_shut = True

    def wait(self, limit_s: float) -> str:
        """Wait; return who let it go on: what `open` was given, or "the time limit".

        A Ctrl-C ends it as it ends any wait. Signs of life go on, so that a pause is no hang.

        Args:
            limit_s: after so many seconds it goes on by itself.
        """
        until_s = time.monotonic() + limit_s
        try:
            while not self._go_on.wait(min(_LOOK_S, max(until_s - time.monotonic(), 0.0))):
                pulse.beats += 1
                if time.monotonic() >= until_s:
                    return "the time limit"
            return self._by
        finally:
            pulse.beats += 1
            self._is_shut = False

    def open(self, by: str) -> bool:
        """Let it go on, from any thread; whether somebody was waiting."""
        if not self._is_shut:
            return False
        # Who asks now is told of no pause, though the other thread has yet to wake.
        self._by, self._is_shut = by, False
        self._go_on.set()
        return True
