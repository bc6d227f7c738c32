"""Counts a session's warnings and critical events while they are written, and keeps the worst in a sentence.

Told of every state of every event, on the thread that writes it. Holds a short text of each, never the event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...wire import SEVERITIES, Event, Severity
from ...wire.libraries import first_own
from ..visible_text import visible_text

_MOST: Final = 4096
"""Events that are told apart; a run with more has other worries."""
_SENTENCE: Final = 200
_SEPARATOR: Final = re.compile(r"[/\\]")
_LOCATED_KINDS: Final = frozenset({"exception", "out_of_memory", "hang", "memory_leak"})
"""Where the loop stood is where the fault is."""


class GradientAnomaly(NamedTuple):
    """An event about gradients: where it was found."""

    step: int
    last_step: int
    kind: str
    subject: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.kind} at step {self.step}" + (f": {self.subject}" if self.subject else "")


class _Noted(NamedTuple):
    """What is kept of one event; the least is the worst."""

    severity: int
    has_no_origin: bool
    step: int
    time: float
    sentence: str
    kind: str
    rank: int


class Tally:
    """Warnings and critical events, each once, as their newest states are."""

    def __init__(self) -> None:
        self._noted: dict[str, _Noted] = {}
        self._gradients: dict[str, GradientAnomaly] = {}

    def note(self, event: Event) -> None:
        """An event has a new state."""
        if event.severity == "info":
            self._noted.pop(event.id, None)
            self._gradients.pop(event.id, None)
        elif event.id in self._noted or len(self._noted) < _MOST:
            self._noted[event.id] = _Noted(
                SEVERITIES.index(event.severity),
                event.origin is None,
                event.step,
                event.time,
                _sentence(event),
                event.kind,
                event.rank,
            )
            if "gradient" in event.kind:
                last_step = event.step if event.last_step is None else event.last_step
                subject = event.subject[:_SENTENCE]
                self._gradients[event.id] = GradientAnomaly(event.step, last_step, event.kind, subject)

    def add(self, others: Iterable[Tally]) -> Tally:
        """Take in what other sessions of the same training have noted."""
        for other in others:
            self._noted |= other._noted
        return self

    @property
    def gradient_anomalies(self) -> list[GradientAnomaly]:
        """Warnings and critical events about gradients, by step."""
        return sorted(self._gradients.copy().values())

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self._noted)

    @property
    def counts(self) -> str:
        """``1 critical event and 2 warnings``."""
        critical, warnings = (self._count("critical"), self._count("warning"))
        parts = [_plural(critical, "critical event"), _plural(warnings, "warning")]
        return " and ".join(part for part in parts if part)

    @property
    def worst(self) -> str | None:
        """The worst in a sentence with its line: critical first, then a proven origin, then in order."""
        return min(self._noted.values()).sentence if self._noted else None

    @property
    def worst_rank(self) -> int | None:
        """The rank that the worst is of."""
        return min(self._noted.values()).rank if self._noted else None

    @property
    def ranks(self) -> int:
        """How many ranks there is something of."""
        return len({noted.rank for noted in self._noted.values()})

    def sentences(self, kind: str) -> list[str]:
        """Those of one kind, the worst first, each in a sentence with its line."""
        return [noted.sentence for noted in sorted(self._noted.values()) if noted.kind == kind]

    def _count(self, severity: Severity) -> int:
        wanted = SEVERITIES.index(severity)
        return sum(noted.severity == wanted for noted in list(self._noted.values()))


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else ""


def _sentence(event: Event) -> str:
    """The event's first line, and the user's line: of the fault, else where it was noticed."""
    lines = event.message.strip().splitlines()
    text = (lines[0] if lines else f"{event.kind} at step {event.step}").rstrip(". ")
    if len(text) > _SENTENCE:
        text = text[:_SENTENCE].rstrip() + " ..."
    text = visible_text(text)
    loop_word = "at" if event.kind in _LOCATED_KINDS else "noticed at"
    for frames, word in (
        (event.stacks.forward, "at"),
        (event.stacks.backward, "at"),
        (event.stacks.training_loop, loop_word),
    ):
        if (frame := first_own(reversed(frames), is_of_op=event.origin is not None)) is not None:
            place = f"{_SEPARATOR.split(frame.file)[-1]}:{frame.line}"
            return text if place in text else f"{text} ({word} {place})"
    return text
