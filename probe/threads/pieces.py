"""Cuts the work of the probe's own thread into pieces, between which training can have Python's lock.

A thread that gives the lock away and takes it again at once keeps it in effect: who waits for it has to be
woken first. So it sleeps for a moment; each time that costs a wake, which is why short pieces are joined, and
why the thread works best in a lull.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

PIECE_NS: Final = 300_000
"""CPU time after which others come first: what follows up to the next call may take twice as long again."""
LULL_PIECE_NS: Final = 1_200_000
"""The same in a lull: there may be other threads, and hooks of the script's own."""
_OTHERS_S: Final = 0.0002


class Lull(Protocol):
    """A time in which training computes without Python's lock: most of a backward."""

    @property
    def is_on(self) -> bool:
        """Whether it is such a time; from any thread."""
        ...

    @property
    def beats(self) -> int:
        """Grows while a training goes on that has lulls."""
        ...

    def call_at_next(self, ring: Callable[[], None] | None) -> None:
        """Have `ring` called once, on the training thread, when the next one begins; None takes that back."""
        ...


class NoLull:
    """Nobody knows of any."""

    is_on = False
    beats = 0

    def call_at_next(self, ring: Callable[[], None] | None) -> None:
        """Nobody is called."""


class _Process:
    """What is known of the process's training."""

    lull: Lull = NoLull()


process: Final = _Process()


class _Thread(threading.local):
    """What is known of the calling thread."""

    is_ours = False
    begun_ns = 0
    """Its CPU time when its piece began."""


_thread: Final = _Thread()


def work_in_pieces() -> None:
    """The calling thread is one of the probe's: what it does is not worth that training waits for it."""
    _thread.is_ours = True


def give_way() -> None:
    """Let others have Python's lock, if the thread has worked for long; nothing on a thread of the script."""
    if not _thread.is_ours:
        return
    taken_ns = time.thread_time_ns() - _thread.begun_ns
    if taken_ns < PIECE_NS or (taken_ns < LULL_PIECE_NS and process.lull.is_on):
        return
    time.sleep(_OTHERS_S)
    _thread.begun_ns = time.thread_time_ns()
