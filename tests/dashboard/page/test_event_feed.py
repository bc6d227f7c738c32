"""What a page gets of a run's events: each in its latest state, a bounded part at a time, nothing twice."""

from __future__ import annotations

import random
import sys
import threading

import msgspec
from sample_events import spike_event

from dashboard.page.event_feed import MOST_EVENTS, OLDER_EVENTS, EventFeed, EventPart
from probe.wire import Event


class Page:
    """What a page does: remembers the numbers of the last part, and puts its events over those it has."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed
        self._last: EventPart | None = None
        self.events: dict[str, Event] = {}

    def ask(self, events: list[Event]) -> EventPart:
        last = self._last
        known = {} if last is None else {"epoch": last.epoch, "low": last.low, "high": last.high}
        part = self._feed.part("run-a", lambda: events, **known)
        if last is not None and part.epoch != last.epoch:
            self.events.clear()
        self.events |= {event.id: event for event in part.events}
        self._last = part
        return part

    def ask_until_complete(self, events: list[Event]) -> int:
        """Return how many parts it took."""
        for number in range(1, 1000):
            part = self.ask(events)
            if part.low == 0 and part.high == part.newest:
                return number
        raise AssertionError("never complete")


def many(number: int) -> list[Event]:
    return [spike_event(step, id=f"{step:016x}") for step in range(number)]


def test_feed_sends_the_newest_first_and_everything_in_the_end() -> None:
    events = many(MOST_EVENTS + 3 * OLDER_EVENTS + 1)
    page = Page(EventFeed())
    first = page.ask(events)
    assert [event.step for event in first.events] == [event.step for event in events[-MOST_EVENTS:]]
    assert first.total == len(events)
    assert page.ask_until_complete(events) == 4
    assert page.events == {event.id: event for event in events}


def test_feed_a_change_among_many_costs_one_event() -> None:
    events = many(5000)
    page = Page(EventFeed())
    page.ask_until_complete(events)
    events[17] = msgspec.structs.replace(events[17], count=9, last_step=90)
    assert page.ask(events).events == (events[17],)
    assert page.ask(events).events == ()


def test_feed_changes_while_older_ones_still_come_lose_nothing() -> None:
    draw = random.Random(3)
    events = many(5000)
    page = Page(EventFeed())
    for count in range(2, 60):
        part = page.ask(events)
        assert len(part.events) <= MOST_EVENTS + OLDER_EVENTS
        for number in draw.sample(range(len(events)), draw.choice([0, 1, 40, 300])):
            events[number] = msgspec.structs.replace(events[number], count=count)
        events.append(spike_event(8000 + count, id=f"{9000 + count:016x}"))
    page.ask_until_complete(events)
    assert page.events == {event.id: event for event in events}


def test_feed_numbers_of_another_server_are_void() -> None:
    page = Page(EventFeed())
    page.ask_until_complete(many(300))
    page._feed = EventFeed()
    page.ask_until_complete(many(30))
    assert page.events == {event.id: event for event in many(30)}


def test_feed_without_events_is_complete_at_once() -> None:
    page = Page(EventFeed())
    assert page.ask_until_complete([]) == 1
    page.ask([spike_event(3)])
    assert [event.step for event in page.events.values()] == [3]


def test_feed_equal_events_read_again_are_no_change() -> None:
    page = Page(EventFeed())
    page.ask_until_complete(many(50))
    assert page.ask(many(50)).events == ()


def test_feed_older_ones_come_though_something_changes_at_every_ask() -> None:
    events = many(MOST_EVENTS + 2 * OLDER_EVENTS + 1)
    page = Page(EventFeed())
    sizes = []
    for count in range(2, 6):
        events[-1] = msgspec.structs.replace(events[-1], count=count)
        sizes.append(len(page.ask(events).events))
    assert sizes == [MOST_EVENTS, 1 + OLDER_EVENTS, 1 + OLDER_EVENTS, 1 + 1]
    assert page.events == {event.id: event for event in events}
    assert page.ask(events).events == ()


def test_feed_more_changes_than_a_part_has_all_come() -> None:
    events = many(2 * MOST_EVENTS + OLDER_EVENTS)
    page = Page(EventFeed())
    page.ask_until_complete(events)
    events = [msgspec.structs.replace(event, count=2) for event in events]
    assert [event.step for event in page.ask(events).events] == list(range(MOST_EVENTS))
    page.ask_until_complete(events)
    assert page.events == {event.id: event for event in events}


def test_feed_keeps_no_event_and_the_numbers_of_many_runs() -> None:
    feed = EventFeed()
    event = spike_event(3)
    references = sys.getrefcount(event)
    epochs = [feed.part(str(run), lambda: [event]).epoch for run in range(20)]
    assert sys.getrefcount(event) == references
    for run, epoch in enumerate(epochs):
        part = feed.part(str(run), lambda: [event], epoch=epoch, low=0, high=1)
        assert (part.epoch, part.events) == (epoch, ())


def test_feed_what_was_read_first_is_numbered_first() -> None:
    feed = EventFeed()
    before = spike_event(3)
    after = msgspec.structs.replace(before, count=9, last_step=7)
    late: list[EventPart] = []
    other = threading.Thread(target=lambda: late.append(feed.part("run-a", lambda: [after])))

    def read_while_another_asks() -> list[Event]:
        other.start()
        # Would be over by then if it did not wait for this read.
        other.join(0.5)
        return [before]

    early = feed.part("run-a", read_while_another_asks)
    other.join(30)
    assert (early.events, late[0].events) == ((before,), (after,))
    again = feed.part("run-a", lambda: [after], epoch=early.epoch, low=early.low, high=early.high)
    assert (again.events, again.newest) == ((after,), 2)
