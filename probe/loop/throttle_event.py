"""The one event of a training about what is measured less often than was asked, brought up to date.

Nothing is lost by that, unless something is not measured any more: that alone is what the event affects.
All models of a process share it, and all ranks its id. Used on the threads that train.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Final

from ..incidents.event_writer import EventWriter
from ..settings.levels import LABELS
from .throttle import TRIPWIRE, Change

_NAMED: Final = 4
"""Features that the first line names."""
_events: Final[dict[str, weakref.ref[ThrottleEvent]]] = {}
"""By group; the sessions that have changed something hold them."""


class ThrottleEvent:
    """What the overhead limit has changed so far.

    Args:
        writer: of the session whose journal has the event.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._asked: dict[tuple[str, str], int] = {}
        """Model and feature -> the period before the first change."""
        self._now: dict[tuple[str, str], int] = {}
        self._first_step = 0
        self._count = 0
        self._declined: list[str] = []
        """What is lost since all objects of the process are not searched at any time."""

    @property
    def is_open(self) -> bool:
        """Whether it can still be brought up to date."""
        return self._writer.is_open

    def add(self, model: str, change: Change, step: int, time: float) -> None:
        """Write its next state."""
        key = model, change.feature
        asked = self._asked.setdefault(key, change.old)
        self._now[key] = change.new
        if change.new == asked and change.feature != TRIPWIRE:
            del self._asked[key], self._now[key]
        lines = [self._summary(change.limit, change.feature == TRIPWIRE)]
        lines += [f"Newest change, at step {step}: {change.message}", *self._declined]
        self._write(lines, step, time, value=change.fraction, threshold=change.limit)

    def add_declined(self, lost: str, step: int, time: float, *, limit: float) -> None:
        """Say what is lost because a search of all objects would exceed the limit."""
        percent = f"{limit * 100:g} %"
        self._declined.append(
            f"All objects of the process are searched less often, to keep to {percent} of the time: {lost}"
        )
        changed = [self._summary(limit, False)] if self._asked else []
        self._write([*changed, *self._declined], step, time, value=None, threshold=limit)

    def _write(
        self, lines: list[str], step: int, time: float, *, value: float | None, threshold: float
    ) -> None:
        if not self._count:
            self._first_step = step
        self._count += 1
        self._writer.note_for_training(
            "throttled",
            "\n".join(lines),
            step=self._first_step,
            last_step=step,
            time=time,
            count=self._count,
            value=value,
            threshold=threshold,
            affected=[LABELS[feature].lower() for (_, feature), period in self._now.items() if not period],
        )

    def forget(self, model: str) -> None:
        """Other things are asked for from now on, and what was changed before says nothing of them."""
        for key in [key for key in self._asked if key[0] == model]:
            del self._asked[key], self._now[key]

    def _summary(self, limit_fraction: float, is_tripwire: bool) -> str:
        """First line: what is measured less often now."""
        has_models = len({model for model, _ in self._asked}) > 1
        parts = [
            f"{LABELS[feature].lower()}{f' of {model}' if has_models else ''} "
            + _how_often(self._now[model, feature], asked)
            for (model, feature), asked in self._asked.items()
            if feature != TRIPWIRE
        ]
        limit = f"{limit_fraction * 100:g} %"
        if not parts and is_tripwire:
            return f"The probe costs more than its {limit} limit here, because these steps are very short"
        if not parts:
            return f"The probe is within its {limit} limit: everything is measured as often as asked again"
        more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
        return f"To keep to {limit} of a step, the probe measures {', '.join(parts[:_NAMED])}{more}"


def event_of(writer: EventWriter) -> ThrottleEvent:
    """Return the event of the training that a session belongs to; the session has to hold it."""
    reference = _events.get(writer.group)
    found = None if reference is None else reference()
    if found is None or not found.is_open:
        found = ThrottleEvent(writer)
        # No Python code: nobody hears of what a signal's handler raises where an object dies.
        _events[writer.group] = weakref.ref(found, partial(_events.pop, writer.group))
    return found


def _how_often(period: int, asked: int) -> str:
    if not period:
        return f"no longer (asked: every {asked} steps)" if asked > 1 else "no longer (asked: every step)"
    return f"every {period} steps instead of {asked}" if asked > 1 else f"every {period} steps"
