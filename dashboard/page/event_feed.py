"""What is new of a run's events since a page last asked, a bounded part at a time.

A page with 20,000 events must not get all of them again because one has changed. Every change of an event
gets the next number here; a page says from which to which number it has everything, and gets first what is
newer, and with it some of what is older. Kept in memory, per server, as numbers alone: a page that comes with
those of another server starts anew. Called on the server's callback threads.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Final

from probe.wire import Event

from .views.event_facts import event_order

MOST_EVENTS: Final = 200
"""Events of the first part, and most that a later one has of what is newer."""
OLDER_EVENTS: Final = 1000
"""Most that a later part has of what is older: the grid does some work for all rows with each part."""
_MAX_RUNS: Final = 64
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
    known: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Event id -> number of its last change, hash of its state then; the store has the events themselves."""
    by_number: dict[int, str] = field(default_factory=dict)
    """Number -> event id. Ascending: a dict keeps the order in which it was filled."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, events: Iterable[Event]) -> None:
        """Number what has changed."""
        states = [(event, hash(event_state(event))) for event in events]
        changed = [(event, state) for event, state in states if self._is_changed(event, state)]
        for event, state in sorted(changed, key=lambda pair: event_order(pair[0])):
            number, _ = self.known.get(event.id, (0, 0))
            self.by_number.pop(number, None)
            self.newest += 1
            self.known[event.id] = self.newest, state
            self.by_number[self.newest] = event.id

    def _is_changed(self, event: Event, state: int) -> bool:
        known = self.known.get(event.id)
        return known is None or known[1] != state

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
        self,
        run: str,
        read: Callable[[], Sequence[Event]],
        *,
        epoch: str | None = None,
        low: int = 0,
        high: int = 0,
    ) -> EventPart:
        """Return the next part for a page that has everything numbered above `low` up to `high`.

        Args:
            run: The run.
            read: Returns all of its events, as they are now. Two threads do not read at once: what was read
                first would be numbered last, and an old state be the newest.
            epoch: Under which the page's numbers count; None for a page that has nothing.
            low: From the last part.
            high: From the last part.
        """
        numbers = self._numbers(run)
        with numbers.lock:
            events = read()
            numbers.follow(events)
            most = OLDER_EVENTS
            if epoch != numbers.epoch:
                low = high = numbers.newest
                most = MOST_EVENTS
            newer = numbers.after(high)
            sent = newer[:MOST_EVENTS]
            older = list(islice(numbers.up_to(min(low, high)), most + 1))
            chosen = {numbers.by_number[number] for number in (*older[:most], *sent)}
            part = [event for event in events if event.id in chosen]
            return EventPart(
                epoch=numbers.epoch,
                events=tuple(sorted(part, key=lambda event: numbers.known[event.id][0])),
                low=older[most - 1] - 1 if len(older) > most else 0,
                high=sent[-1] if len(newer) > len(sent) else numbers.newest,
                newest=numbers.newest,
                total=len(numbers.known),
            )

    def _numbers(self, run: str) -> _Numbers:
        with self._lock:
            numbers = self._runs.setdefault(run, _Numbers())
            self._runs.move_to_end(run)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
            return numbers


def event_state(event: Event) -> tuple[Any, ...]:
    """What changes while an episode lasts: a bundle adds a line to the message, a worse step the severity."""
    episode = (event.id, event.count, event.last_step, event.ended, event.severity)
    return (*episode, event.message, len(event.propagated_to), event.origin is None)
