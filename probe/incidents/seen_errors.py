"""Which exceptions of the script have an event already. The exceptions themselves are not kept alive.

An exception is told apart by a mark in its `__dict__`: its address may belong to another one a moment later,
and a reference to it would hold the batches and graphs of all functions that it went through.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from ..wire import Event

_MARK: Final = "_nanscope_events"
_GROUPS: Final = "_nanscope_groups"
_MOST: Final = 64
"""Events that are kept, so that more can be said of them."""


class SeenErrors:
    """The exceptions that one session has written events of.

    Args:
        run: of the session.
        group: the same for all models of one training; an exception has one event in it.
    """

    def __init__(self, run: str, group: str = "") -> None:
        self._run, self._group = run, group or run
        self._events: OrderedDict[str, Event] = OrderedDict()

    def is_known(self, error: BaseException) -> bool:
        """Whether this session has written an event of the exception."""
        return self._run in marks_of(error)

    def is_of_another(self, error: BaseException) -> bool:
        """Whether another session of the group, and not this one, has written an event of the exception."""
        return not self.is_known(error) and self._group in _attributes_of(error).get(_GROUPS, ())

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
        attributes = _attributes_of(error)
        attributes[_MARK] = {**marks_of(error), self._run: event.id}
        attributes[_GROUPS] = {*attributes.get(_GROUPS, ()), self._group}
        self._events[event.id] = event
        self._events.move_to_end(event.id)
        while len(self._events) > _MOST:
            self._events.popitem(last=False)


def marks_of(error: BaseException) -> dict[str, str]:
    """Run -> id of the event that a session of it has written of the exception."""
    marks = _attributes_of(error).get(_MARK)
    return marks if isinstance(marks, dict) else {}


def _attributes_of(error: BaseException) -> dict[str, Any]:
    """Its own ones; a dictionary that nobody keeps where a class hides them."""
    attributes = getattr(error, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}
