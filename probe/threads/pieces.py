"""Cuts the work of the probe's own thread into pieces, between which training can have Python's lock.

A thread that gives the lock away and takes it again at once keeps it in effect: who waits for it has to be
woken first. So it sleeps for a moment; each time that costs a wake, which is why short pieces are joined.
"""

from __future__ import annotations

import threading
import time
from typing import Final

PIECE_NS: Final = 300_000
"""CPU time after which others come first: what follows up to the next call may take twice as long again."""
_OTHERS_S: Final = 0.0002


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
    if not _thread.is_ours or time.thread_time_ns() - _thread.begun_ns < PIECE_NS:
        return
    time.sleep(_OTHERS_S)
    _thread.begun_ns = time.thread_time_ns()
