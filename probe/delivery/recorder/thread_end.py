"""Waits for the end of the recorder's thread, which writes what is left: a disk can hang, or be slow."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

from .bell import Bell

_logger = logging.getLogger(__name__)

CLOSE_S: Final = 2.0
"""How long a flush or a close waits for the thread: a disk can hang."""
CLOSE_MOST_S: Final = 20.0
"""How long a close waits in all on a slow disk, as long as one write follows the other."""
SAID_S: Final = 0.1
"""Where the newest write took so long, the wait is worth a line."""
_WRITES_WITHOUT_PROGRESS: Final = 4
"""Of what happens at the end, so much is no write to the journal, and takes as long."""
CLOSE_AGAIN_S: Final = 0.2
"""How long who comes when that time is over waits."""


class Progress(Protocol):
    """What is asked of a recorder while it ends."""

    @property
    def progress(self) -> int:
        """Grows as long as the thread gets on."""
        ...

    @property
    def write_s(self) -> float:
        """How long the newest write took."""
        ...

    @property
    def is_writing_here(self) -> bool:
        """Whether the thread waits for what is below the caller, a signal's handler."""
        ...


class ThreadEnd:
    """Whether the thread has ended, or has never begun."""

    def __init__(self) -> None:
        self.is_over = self._is_said = False
        self._over = Bell()
        self._begun_s = 0.0

    def begin(self) -> None:
        """Somebody closes, for the first time."""
        self._begun_s = time.monotonic()

    def note(self) -> None:
        """The thread has ended."""
        self.is_over = True
        self._over.ring()

    def wait(self, recorder: Progress) -> bool:
        """Wait until the thread has ended, or has got nowhere for a while; whether it has ended."""
        # Not by `join`, after which Python 3.11 takes a thread for ended where a Ctrl-C has broken it off.
        before = -1
        while not self.is_over and before != recorder.progress:
            if recorder.is_writing_here:
                return False
            self._say_slow(recorder.write_s)
            before, since_s = recorder.progress, time.monotonic() - self._begun_s
            slow_s = min(recorder.write_s * _WRITES_WITHOUT_PROGRESS, CLOSE_MOST_S - since_s)
            if self._over.wait(max(CLOSE_S - since_s, slow_s, CLOSE_AGAIN_S)):
                self._over.ring()  # there may be other waiters
        return self.is_over

    def _say_slow(self, write_s: float) -> None:
        """Say, once, why the end takes so long."""
        if write_s < SAID_S or self._is_said:
            return
        self._is_said = True
        text = (
            "nanscope: the disk is slow (the newest write took %.1f s); the end of the run waits up to %.0f s"
        )
        _logger.warning(text, write_s, CLOSE_MOST_S)
