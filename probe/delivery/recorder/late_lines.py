"""Lines of events' messages that are known later than the event, such as where its bundle is. Any thread.

An event is written in many states, each by whoever has a copy of it. So what is known late is put in here,
where all of them pass, and the newest state is written once more.
"""

from __future__ import annotations

import msgspec

from ...wire import Event
from ...wire.message_lines import BEING_WRITTEN


class LateLines:
    """What takes the place of the lines that begin with `BEING_WRITTEN`. Used under one lock."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._newest: dict[str, Event] = {}
        """Their newest states, as they were given; a run has few bundles."""

    def complete(self, event: Event) -> Event:
        """Return the event with its line, where that is known."""
        if BEING_WRITTEN not in event.message:
            return event
        self._newest[event.id] = event
        line = self._known.get(event.id)
        return event if line is None else _with_line(event, line)

    def settle(self, event_id: str, line: str) -> Event | None:
        """Take in an event's line; return the event's newest state with it, which is to be written."""
        self._known[event_id] = line
        event = self._newest.get(event_id)
        return None if event is None else _with_line(event, line)


def _with_line(event: Event, line: str) -> Event:
    lines = (line if one.startswith(BEING_WRITTEN) else one for one in event.message.split("\n"))
    return msgspec.structs.replace(event, message="\n".join(lines))
