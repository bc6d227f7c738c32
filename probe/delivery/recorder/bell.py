"""`Bell`: one thread waits until another rings. The recorder's thread and the script's use it."""

from __future__ import annotations

import threading

from ...guard import let_pass


class Bell:
    """Like `threading.Event`, but usable by a thread in the middle of its own use.

    A signal's handler and the garbage collector may come anywhere; an `Event` holds a lock for a moment, and
    a thread that came upon it then would wait for itself. One ring ends one `wait`, this or the next one.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Let one waiter go; ringing again before anyone waits changes nothing."""
        try:
            self._silence.release()
        except RuntimeError as error:
            let_pass(error)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring; whether there was one."""
        return self._silence.acquire(timeout=timeout_s)
