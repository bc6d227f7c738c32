"""Counts a session's warnings and critical events while they are written, and keeps the worst in a sentence.

Told of every state of every event, on the thread that writes it. Of each it holds a short text, and what
sorts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from ...wire import SEVERITIES, Event, Evidence, Severity, StackFrame, Stacks, member_number
from ...wire.event_places import is_only_noticed
from ...wire.event_texts import headline, led_to_it
from ...wire.libraries import first_own
from ..visible_text import visible_text

_MOST: Final = 4096
"""Events that are told apart; a run with more has other worries."""
_SENTENCE: Final = 200
_SEPARATOR: Final = re.compile(r"[/\\]")
_LOCATED_KINDS: Final = frozenset({"exception", "out_of_memory", "hang", "memory_leak"})
"""Where the loop stood is where the fault is."""
_HERE: Final = StackFrame(file="", line=0, function="")
"""Stands for the line at which a fault is known to have begun."""


class GradientAnomaly(NamedTuple):
    """An event about gradients: where it was found."""

    step: int
    last_step: int
    kind: str
    subject: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.kind} at step {self.step}" + (f": {self.subject}" if self.subject else "")


class Tally:
    """Warnings and critical events, each once, as their newest states are."""

    def __init__(self) -> None:
        self._noted: dict[str, Event] = {}
        """Without what takes room, see `_lean`."""
        self._gradients: dict[str, GradientAnomaly] = {}
        self.models = 1
        """That the run has made one after the other."""

    def note(self, event: Event) -> None:
        """An event has a new state."""
        if event.severity == "info":
            self._noted.pop(event.id, None)
            self._gradients.pop(event.id, None)
        elif event.id in self._noted or len(self._noted) < _MOST:
            self._noted[event.id] = _lean(event)
            if "gradient" in event.kind:
                last_step = event.step if event.last_step is None else event.last_step
                subject = event.subject[:_SENTENCE]
                self._gradients[event.id] = GradientAnomaly(event.step, last_step, event.kind, subject)

    def add(self, others: Iterable[Tally]) -> Tally:
        """Take in what other sessions of the same training have noted."""
        for other in others:
            self._noted |= other._noted
            self.models = max(self.models, other.models)
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
    def has_critical(self) -> bool:
        """Whether one is critical."""
        return self._count("critical") > 0

    @property
    def worst(self) -> str | None:
        """The event that the page's verdict names, in a sentence with its line."""
        worst = self._worst()
        return None if worst is None else worst.message.partition("\n")[0]

    @property
    def led_to_worst(self) -> str | None:
        """What changed before it, and why its origin is not known; None where nothing is known of that."""
        worst = self._worst()
        return None if worst is None else ". ".join(worst.message.split("\n")[1:]) or None

    @property
    def worst_rank(self) -> int | None:
        """The rank that the worst is of."""
        worst = self._worst()
        return None if worst is None else worst.rank

    @property
    def worst_model(self) -> int | None:
        """Which of several models the worst is of, from 1."""
        worst = self._worst()
        return None if worst is None or self.models == 1 else member_number(worst.member) + 1

    @property
    def ranks(self) -> int:
        """How many ranks there is something of."""
        return len({noted.rank for noted in self._noted.values()})

    def sentences(self, kind: str) -> list[str]:
        """Those of one kind, the severest first, each in a sentence with its line."""
        found = [noted for noted in list(self._noted.values()) if noted.kind == kind]
        found.sort(key=lambda noted: (SEVERITIES.index(noted.severity), noted.step, noted.time))
        return [noted.message.partition("\n")[0] for noted in found]

    def _worst(self) -> Event | None:
        # Only asked for at the end of a run that has something.
        from ...wire.causes import group_by_cause, worst_cause

        cause = worst_cause(group_by_cause(list(self._noted.values())))
        return None if cause is None else cause.origin

    def _count(self, severity: Severity) -> int:
        return sum(noted.severity == severity for noted in list(self._noted.values()))


def _lean(event: Event) -> Event:
    """The event with its sentence and what led to it as its message, and nothing else but what sorts it.

    The sessions of a group, which are starts of their own, are one training here.
    """
    message = "\n".join([_sentence(event), *(_cut(said.rstrip(".")) for said in led_to_it(event))])
    known = Stacks() if is_only_noticed(event) else Stacks(forward=[_HERE])
    return msgspec.structs.replace(
        event,
        incarnation=0,
        message=message,
        stacks=known,
        evidence=Evidence(),
        data={},
        advice=[],
        propagated_to=[],
    )


def _cut(text: str) -> str:
    return visible_text(text if len(text) <= _SENTENCE else text[:_SENTENCE].rstrip() + " ...")


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else ""


def _sentence(event: Event) -> str:
    """The event's first line, and the user's line: of the fault, else where it was noticed."""
    text = _cut(headline(event).rstrip(". "))
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
