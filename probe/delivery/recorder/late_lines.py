"""Lines of events' messages that are known later than the event: where its bundle is. Any thread.

An event is written in many states, by several holders of a copy of it, and the message of an exception may
quote another event's. So what is known late is put in here, where all of them pass, and the newest states
are written once more.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...wire import Event
from ...wire.message_lines import BEING_WRITTEN


class LateLines:
    """What replaces the lines `BEING_WRITTEN` and a bundle's folder. Used under one lock."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """By the folder's name, which is the id of its event."""
        self._newest: dict[str, Event] = {}
        """The newest states of the events that have such lines, as they were given; a run has few bundles."""

    def complete(self, event: Event) -> Event:
        """Return the event with the lines that are known."""
        if BEING_WRITTEN not in event.message:
            return event
        self._newest[event.id] = event
        message = "\n".join(map(self._complete_line, event.message.split("\n")))
        return msgspec.structs.replace(event, message=message)

    def settle(self, name: str, line: str) -> list[Event]:
        """Take in the line of a bundle; return the newest states of the events that have it."""
        self._known[name] = line
        return [event for event in self._newest.values() if any(map(_names(name), event.message.split("\n")))]

    def _complete_line(self, line: str) -> str:
        return self._known.get(line.rpartition("/")[2], line) if line.startswith(BEING_WRITTEN) else line


def _names(name: str) -> Callable[[str], bool]:
    return lambda line: line.startswith(BEING_WRITTEN) and line.endswith(f"/{name}")
