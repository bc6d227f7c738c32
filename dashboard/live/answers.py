"""Answers that are worked out once and shared: who asks the same at the same time waits for the one at work.

Knows nothing of runs. Used by `Pictures` on the hub's reader threads; any thread may ask.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MAX_ANSWERS: Final = 32
MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the arrays in all answers together; the newest is kept in any case."""

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Entry(Generic[Answer]):
    """One question."""

    at_work: threading.Lock = field(default_factory=threading.Lock)
    answers: tuple[Answer, ...] = ()
    """The answer, once there is one."""
    revision: int = -1
    read_at: float = 0.0
    """Monotonic seconds, before the first read."""
    size_bytes: int = 0


class Answers(Generic[Question, Answer]):
    """A bounded number of answers by question; the one asked for longest ago goes first."""

    def __init__(
        self,
        *,
        size_bytes: Callable[[Answer], int],
        max_age_s: float = float("inf"),
        max_answers: int = MAX_ANSWERS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Start without answers.

        Args:
            size_bytes: Returns what an answer takes.
            max_age_s: An answer is too old after so long, though nothing has changed.
            max_answers: Most that are kept.
            max_bytes: Most that they take.
        """
        self._size_bytes, self._max_age_s = size_bytes, max_age_s
        self._max_answers, self._max_bytes = max_answers, max_bytes
        self._entries: OrderedDict[Question, _Entry[Answer]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Questions whose answers are kept."""
        return len(self._entries)

    def ask(
        self,
        question: Question,
        *,
        revision: Callable[[], int],
        work_out: Callable[[], Answer],
        asked_at: float | None = None,
    ) -> Answer:
        """Return an answer that shows all that was there when it was asked for.

        Args:
            question: Equal ones have equal answers at one revision.
            revision: Returns a number that changes after the answer may have.
            work_out: Makes a new answer; called by one thread at a time for a question.
            asked_at: Monotonic seconds; an answer that was begun later will do. None is now.
        """
        asked_at = time.monotonic() if asked_at is None else asked_at
        with self._lock:
            entry = self._entries.setdefault(question, _Entry())
            self._entries.move_to_end(question)
        with entry.at_work:
            if entry.answers and self._is_good(entry, revision(), asked_at):
                return entry.answers[0]
            read_at, at = time.monotonic(), revision()
            answer = work_out()
            entry.answers, entry.revision, entry.read_at = (answer,), at, read_at
            entry.size_bytes = self._size_bytes(answer)
        self._drop_old()
        return answer

    def clear(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._entries.clear()

    def _is_good(self, entry: _Entry[Answer], revision: int, asked_at: float) -> bool:
        is_young = time.monotonic() - entry.read_at < self._max_age_s
        return entry.read_at >= asked_at or (is_young and entry.revision == revision)

    def _drop_old(self) -> None:
        with self._lock:
            total = sum(entry.size_bytes for entry in self._entries.values())
            while len(self._entries) > 1 and (
                len(self._entries) > self._max_answers or total > self._max_bytes
            ):
                _, oldest = self._entries.popitem(last=False)
                total -= oldest.size_bytes
