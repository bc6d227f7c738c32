"""Which exceptions of the script have an event already. The exceptions themselves are not kept alive.

An exception is told apart by a mark in its `__dict__`: its address may belong to another one a moment later,
and a reference to it would hold the batches and graphs of all functions that it went through.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from ..wire import Event

_MARK: Final = "_nanscope_events"
_MOST: Final = 64
"""Events that are kept, so that more can be said of them."""


class SeenErrors:
    """The exceptions that one session has written events of."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._events: OrderedDict[str, Event] = OrderedDict()

    def is_known(self, error: BaseException) -> bool:
        """Whether this session has written an event of the exception."""
        return self._run in marks_of(error)

    def event_of(self, error: BaseException) -> Event | None:
        """Its event in the latest state; None where there is none, or many have come since."""
        return self._events.get(marks_of(error).get(self._run, ""))

    def take_over(self, error: BaseException, event: Event) -> Event:
        """Keep an event; return it as the next state of the one that the exception has, where it has one."""
        if (known := self.event_of(error)) is not None:
            same = {name: getattr(known, name) for name in ("id", "step", "kind", "subject", "data")}
            event = msgspec.structs.replace(event, **same)
        self.keep(error, event)
        return event

    def keep(self, error: BaseException, event: Event) -> None:
        """Mark an exception as one that has an event."""
        marks = marks_of(error)
        if isinstance(attributes := getattr(error, "__dict__", None), dict):
            attributes[_MARK] = {**marks, self._run: event.id}
        self._events[event.id] = event
        self._events.move_to_end(event.id)
        while len(self._events) > _MOST:
            self._events.popitem(last=False)


def marks_of(error: BaseException) -> dict[str, str]:
    """Run -> id of the event that a session of it has written of the exception."""
    attributes = getattr(error, "__dict__", None)
    marks = attributes.get(_MARK) if isinstance(attributes, dict) else None
    return marks if isinstance(marks, dict) else {}
