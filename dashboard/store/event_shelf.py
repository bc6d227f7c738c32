"""The events of the runs that are being looked at, in memory: reading them again decodes nothing.

Used by `DuckStore` under its lock; nothing here takes a lock. Events are removed only with their run, so what
was read once and every append since then is all there is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from probe.wire import Event

MAX_RUNS: Final = 4
"""Runs whose events are kept; the one read longest ago goes first."""


class EventShelf:
    """Latest state of every event of a few runs."""

    def __init__(self) -> None:
        self._events: OrderedDict[str, dict[str, Event]] = OrderedDict()
        self._in_order: dict[str, list[Event]] = {}
        self._marks: dict[str, int] = {}
        self.mark_of_all = 0
        """A number that changes whenever an event of any run arrives or goes."""

    def mark(self, run: str) -> int:
        """Return a number that changes whenever an event of the run arrives; asked for before a read."""
        return self._marks.get(run, 0)

    def put(self, run: str, events: Iterable[Event], *, mark: int) -> None:
        """Keep what was read of a run, unless an event has arrived since `mark` was asked for."""
        if mark != self.mark(run):
            return
        self._events[run] = {event.id: event for event in events}
        self._in_order.pop(run, None)
        while len(self._events) > MAX_RUNS:
            oldest, _ = self._events.popitem(last=False)
            self._in_order.pop(oldest, None)

    def add(self, events: Iterable[Event]) -> None:
        """Take what an append brought: new events, and newer states of those that are there."""
        for event in events:
            self.mark_of_all += 1
            self._marks[event.run] = self.mark(event.run) + 1
            if (known := self._events.get(event.run)) is not None:
                known[event.id] = event
                self._in_order.pop(event.run, None)

    def events(self, run: str) -> list[Event] | None:
        """Return the events of a run by step, then time, not to be changed; None where it is not kept."""
        if (known := self._events.get(run)) is None:
            return None
        self._events.move_to_end(run)
        if run not in self._in_order:
            self._in_order[run] = sorted(known.values(), key=lambda event: (event.step, event.time, event.id))
        return self._in_order[run]

    def forget(self, run: str) -> None:
        """Drop the events of a run that has been deleted; a read that began before counts as too old."""
        self._events.pop(run, None)
        self._in_order.pop(run, None)
        self.mark_of_all += 1
        self._marks[run] = self.mark(run) + 1
