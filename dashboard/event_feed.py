"""What is new of a run's events since a page last asked, a bounded part at a time.

A page with 20,000 events must not get all of them again because one has changed. Every change of an event
gets the next number here; a page says from which to which number it has everything, and gets first what is
newer, then what is older. Kept in memory, per server: a page that comes with the numbers of another server
starts anew. Called on the server's callback threads.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Final

from probe.wire import Event

from .views.event_facts import event_order

MOST_EVENTS: Final = 200
"""Events of the first part, and of one with what is newer."""
OLDER_EVENTS: Final = 1000
"""Events of a part with what is older: the grid does some work for all rows with each part."""
_MAX_RUNS: Final = 8
"""Runs whose numbers are kept; a page on one that was forgotten starts anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPart:
    """Some events of a run, and what the page has of it with them."""

    epoch: str
    """Other numbers count under another epoch: what a page has of those is void."""
    events: tuple[Event, ...]
    low: int
    high: int
    """Everything numbered above `low` up to `high` is with the page now; with 0 and `newest` it has all."""
    newest: int
    total: int
    """Events of the run."""


@dataclass(slots=True)
class _Numbers:
    """The changes of one run."""

    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    newest: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    """Event id -> number of its last change."""
    by_number: dict[int, Event] = field(default_factory=dict)
    """Ascending: a dict keeps the order in which it was filled."""

    def follow(self, events: Iterable[Event]) -> None:
        """Number what has changed."""
        changed = [event for event in events if self._is_changed(event)]
        for event in sorted(changed, key=event_order):
            self.by_number.pop(self.numbers.get(event.id, 0), None)
            self.newest += 1
            self.numbers[event.id] = self.newest
            self.by_number[self.newest] = event

    def _is_changed(self, event: Event) -> bool:
        known = self.by_number.get(self.numbers.get(event.id, 0))
        return known is not event and (known is None or event_state(known) != event_state(event))

    def after(self, high: int) -> list[int]:
        """Return the numbers above `high` that are in use, ascending."""
        return list(takewhile(lambda number: number > high, reversed(self.by_number)))[::-1]

    def up_to(self, low: int) -> Iterator[int]:
        """Return the numbers up to `low` that are in use, descending."""
        return (number for number in reversed(self.by_number) if number <= low)


class EventFeed:
    """Numbers of the changes of several runs. Thread-safe."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Numbers] = OrderedDict()
        self._lock = threading.Lock()

    def part(
        self, run: str, events: Sequence[Event], *, epoch: str | None = None, low: int = 0, high: int = 0
    ) -> EventPart:
        """Return the next part for a page that has everything numbered above `low` up to `high`.

        Args:
            run: The run.
            events: All of its events, as they are now.
            epoch: Under which the page's numbers count; None for a page that has nothing.
            low: From the last part.
            high: From the last part.
        """
        with self._lock:
            numbers = self._runs.setdefault(run, _Numbers())
            self._runs.move_to_end(run)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
            numbers.follow(events)
            most = OLDER_EVENTS
            if epoch != numbers.epoch:
                low = high = numbers.newest
                most = MOST_EVENTS
            if newer := numbers.after(high)[:MOST_EVENTS]:
                chosen, high = newer, newer[-1]
            else:
                high = numbers.newest
                found = list(islice(numbers.up_to(low), most + 1))
                chosen = found[:most]
                low = chosen[-1] - 1 if len(found) > most else 0
            part = tuple(numbers.by_number[number] for number in sorted(chosen))
            return EventPart(
                epoch=numbers.epoch,
                events=part,
                low=low,
                high=high,
                newest=numbers.newest,
                total=len(numbers.numbers),
            )


def event_state(event: Event) -> tuple[Any, ...]:
    """What changes while an episode lasts: a bundle adds a line to the message, a worse step the severity."""
    episode = (event.id, event.count, event.last_step, event.ended, event.severity)
    return (*episode, event.message, len(event.propagated_to), event.origin is None)
