"""What waits for the events stream: written at once as a rule, kept and tried again where the disk is full.

`put` and `write` are called on the training thread and on the recorder's; the garbage collector and signals'
handlers may call them in the middle of themselves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from ...errors import JournalError
from ..journal.journal import JournalWriter

UNWRITTEN_EVENTS: Final = 256


class EventsQueue:
    """The events of one writer, in their order.

    Args:
        journal: where they go.
        note: is told, in one sentence, what goes wrong.

    Attributes:
        lock: held while the stream is written.
        lost: events that found no room.
        problem: why nothing can be written just now, in one sentence; None while it can.
        written: grows as long as the thread gets on.
    """

    def __init__(self, journal: JournalWriter, note: Callable[[str], None]) -> None:
        self._journal, self._note = journal, note
        self.lock = threading.RLock()
        self.lost = self.written = 0
        self.problem: str | None = None
        self._writer = 0
        """The thread that is writing."""
        self._waiting: deque[bytes] = deque()
        self._urgent: deque[bytes] = deque()
        """What tells of losses: written before all else, on a full disk into the room that is kept."""

    @property
    def waiting(self) -> int:
        """Events that could not be written yet."""
        return len(self._waiting)

    @property
    def is_being_written_here(self) -> bool:
        """Whether the thread that asks is in the middle of writing."""
        return self._writer == threading.get_ident()

    def put(self, encoded: bytes, *, is_urgent: bool = False) -> None:
        """Have a record written next."""
        (self._urgent if is_urgent else self._waiting).append(encoded)

    def write(self) -> None:
        """Write waiting events in order."""
        if self.is_being_written_here:
            # The garbage collector or a signal has come here meanwhile: what waits is written all the same.
            return
        with self.lock:
            self._writer = threading.get_ident()
            try:
                self._write_waiting()
            finally:
                self._writer = 0

    def give_up(self) -> None:
        """Count what waits as lost: the disk has no room for it."""
        self.lost += len(self._waiting)
        self._waiting.clear()

    def _write_waiting(self) -> None:
        try:
            while self._urgent:
                self._journal.append("events", self._urgent[0], is_urgent=True)
                self._urgent.popleft()
            while self._waiting:
                self._journal.append("events", self._waiting[0])
                self._waiting.popleft()
                self.written += 1
            self.problem = None
        except JournalError as error:
            self.problem = str(error)
            self._note(str(error))
            while len(self._urgent) > UNWRITTEN_EVENTS:
                self._urgent.popleft()
            while len(self._waiting) > UNWRITTEN_EVENTS:
                self._waiting.popleft()
                self.lost += 1
