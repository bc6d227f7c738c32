"""News that wait for one outlet: who puts them in never waits, and what is too much is counted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from .news import News

MOST_WAITING: Final = 1000
"""The oldest goes first."""


class WaitingNews:
    """A queue with an end.

    Args:
        note: Is given how many wait, and how many were thrown away just now; with every change.
    """

    def __init__(self, note: Callable[[int, int], None]) -> None:
        self._note = note
        self._news: deque[News] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, news: Sequence[News]) -> None:
        """Add some; any thread."""
        if not news:
            return
        with self._changed:
            self._news.extend(news)
            dropped = max(0, len(self._news) - MOST_WAITING)
            for _ in range(dropped):
                self._news.popleft()
            self._note(len(self._news), dropped)
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until some are there, or the queue is closed; return whether some are there."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._is_closed, timeout_s)
            return bool(self._news)

    def take(self, most: int = MOST_WAITING) -> list[News]:
        """Return the oldest ones, which wait no longer."""
        with self._changed:
            taken = [self._news.popleft() for _ in range(min(most, len(self._news)))]
            self._note(len(self._news), 0)
        return taken

    def close(self) -> None:
        """Have nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
