"""What waits for the events stream: written at once as a rule, kept and tried again where the disk is full.

On a slow disk the script's threads write one thing alone: the first critical event of a step, with what waits
before it. All else is left to the recorder's thread. `keep`, `write_now` and `write` are called on the
training thread and on the recorder's; the garbage collector and signals' handlers may call them in the middle
of themselves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ...errors import JournalError
from ...wire import MAX_DOCUMENTS, Document, Event, Gap, Layout, RunEnd, RunStart, encode
from ..journal.journal import SLOW_S, JournalWriter
from .late_lines import LateLines
from .record_encoder import RecordEncoder
from .tally import Tally

UNWRITTEN_EVENTS: Final = 256
_LOOK_S: Final = 0.001
_LOOKS: Final = 100
_MOST_IDS: Final = 4096

EventsRecord = Event | Layout | Document | Gap | RunStart
"""What is kept."""


class EventsQueue:
    """The events of one writer, in their order.

    Args:
        journal: where they go.
        encoder: makes bytes of them.
        note: is told, in one sentence, what goes wrong.

    Attributes:
        lock: held while the stream is written.
        lost: events that found no room.
        problem: why nothing can be written just now, in one sentence; None while it can.
        is_left: something was left to the recorder's thread.
        tally: the warnings and critical events so far.
    """

    def __init__(self, journal: JournalWriter, encoder: RecordEncoder, note: Callable[[str], None]) -> None:
        self._journal, self._encoder, self._note = journal, encoder, note
        self.lock = threading.RLock()
        self.lost = 0
        self.problem: str | None = None
        self.is_left = False
        self.tally = Tally()
        self._writer = 0
        """The thread that is writing."""
        self._in_a_hurry = 0
        """Threads of the script that wait for the lock."""
        self._waiting: deque[bytes] = deque()
        self._urgent: deque[bytes] = deque()
        """What tells of losses: written before all else, on a full disk into the room that is kept."""
        self._lines, self._lines_lock = LateLines(), threading.RLock()
        self._documents = 0
        self._begun: set[str] = set()
        """Critical events that a thread of the script has written on a slow disk."""
        self._begun_step: int | None = None

    @property
    def waiting(self) -> int:
        """Events that could not be written yet."""
        return len(self._waiting)

    @property
    def is_being_written_here(self) -> bool:
        """Whether the thread that asks is in the middle of writing."""
        return self._writer == threading.get_ident()

    @property
    def is_slow(self) -> bool:
        """Whether the newest write has taken so long that no step is to wait for the next one."""
        return self._journal.write_s >= SLOW_S

    def keep(self, record: EventsRecord) -> None:
        """Have a record written next."""
        with self._lines_lock:
            if isinstance(record, Event):
                record = self._lines.complete(record)
            elif isinstance(record, Document) and not self._has_room_for_document():
                return
            encoded = self._encoder.encode(record)
            if encoded is None:
                return
            is_urgent = isinstance(record, Gap) or (isinstance(record, Event) and record.kind == "data_gap")
            (self._urgent if is_urgent else self._waiting).append(encoded)
            if isinstance(record, Event):
                self.tally.note(record)

    def _has_room_for_document(self) -> bool:
        self._documents += 1
        if self._documents > MAX_DOCUMENTS:
            self._note(f"more than {MAX_DOCUMENTS:,} snapshots, profiles and regions; the rest is not kept")
        return self._documents <= MAX_DOCUMENTS

    def keep_last(self, record: RunEnd) -> None:
        """Have the end of the run written, on a full disk too."""
        self._urgent.append(encode(record))

    def settle(self, event_id: str, line: str) -> None:
        """Put what is known of an event's bundle into its newest state, and into all that follow."""
        with self._lines_lock:
            for event in self._lines.settle(event_id, line):
                self.keep(event)
        self.is_left = True

    def write_now(self, record: EventsRecord) -> bool:
        """On a thread of the script: write what waits, as far as the step may wait for the disk.

        Args:
            record: the newest that waits.

        Returns:
            Whether nothing is left to the recorder's thread.
        """
        if not self.is_slow:
            self.write()
            return True
        self.is_left = True
        if self._may_wait_for(record) and not self.is_being_written_here:
            self._in_a_hurry += 1
            try:
                with self.lock:
                    self._write_under_lock(lambda: self._write_batch(self._waiting))
            finally:
                self._in_a_hurry -= 1
        return False

    def _may_wait_for(self, record: EventsRecord) -> bool:
        """Whether it is the first critical event of a step."""
        if not isinstance(record, Event) or record.severity != "critical":
            return False
        if record.step == self._begun_step or record.id in self._begun:
            return False
        if len(self._begun) < _MOST_IDS:
            self._begun.add(record.id)
        self._begun_step = record.step
        return True

    def write(self) -> None:
        """Write waiting events in order."""
        if self.is_being_written_here:
            # The garbage collector or a signal has come here meanwhile: what waits is written all the same.
            return
        self.is_left, is_done = False, False
        while not is_done:
            with self.lock:
                is_done = self._write_under_lock(self._write_next if self.is_slow else self._write_waiting)
            self._give_precedence()
        self._journal.update_account("events")

    def give_up(self) -> None:
        """Count what waits as lost: the disk has no room for it."""
        self.lost += len(self._waiting)
        self._waiting.clear()

    def _give_precedence(self) -> None:
        """A lock is not handed on in order: let a thread of the script have it that waits for it."""
        looks = _LOOKS
        while self._in_a_hurry and looks:
            time.sleep(_LOOK_S)
            looks -= 1

    def _write_under_lock(self, write: Callable[[], None]) -> bool:
        """Call what writes; returns whether nothing waits that could be written."""
        self._writer = threading.get_ident()
        try:
            write()
        except JournalError as error:
            self.problem = str(error)
            self._note(str(error))
            self._drop_oldest()
            return True
        finally:
            self._writer = 0
        return not (self._urgent or self._waiting)

    def _write_waiting(self) -> None:
        while self._urgent:
            self._journal.append("events", self._urgent[0], is_urgent=True)
            self._urgent.popleft()
        while self._waiting:
            self._journal.append("events", self._waiting[0])
            self._waiting.popleft()
        self.problem = None

    def _write_next(self) -> None:
        """On a slow disk: with one write."""
        self._write_batch(self._urgent or self._waiting)

    def _write_batch(self, queue: deque[bytes]) -> None:
        records = [queue[index] for index in range(len(queue))]
        if records:
            is_urgent = queue is self._urgent
            self._journal.append_many("events", records, is_urgent=is_urgent, is_brief=True)
            for _ in records:
                queue.popleft()
        self.problem = None

    def _drop_oldest(self) -> None:
        while len(self._urgent) > UNWRITTEN_EVENTS:
            self._urgent.popleft()
        while len(self._waiting) > UNWRITTEN_EVENTS:
            self._waiting.popleft()
            self.lost += 1
