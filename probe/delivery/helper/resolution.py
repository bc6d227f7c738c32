"""Which steps of which ranks of this host are sent in full, and of which others what is pooled is sent.

Of a run of many ranks nobody looks at every layer of every rank at every step. In full are sent: the run's
first rank, ranks that pages show, steps around events of any rank of this host, and what cannot be pooled
(NaN and Inf, steps that come again).
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ...wire import Layout
from ..journal.journal_reader import Chunk, StreamFollower
from .helper import host_folder

POOL_ABOVE: Final = 16
"""Ranks of a run up to which all is sent in full; `NANSCOPE_POOL_ABOVE` changes it."""
POOLED_STEPS: Final = 16
"""Steps of a bucket: those of the store's first level above single steps."""
EVENT_STEPS: Final = 200
"""Steps on either side of an event that are sent in full."""
HOLD_S: Final = 600.0
"""A step's statistics wait this long at most for `EVENT_STEPS` later ones: an event may be among them."""
ALWAYS_FULL: Final = frozenset({0})
_MOST_EVENTS: Final = 4096
"""Distinct buckets with events that are remembered, the newest."""


class EventStep(msgspec.Struct, tag="event", tag_field="t", frozen=True):
    """As much of an event as decides what is sent around it."""

    step: int
    severity: str


_decoder: Final = msgspec.msgpack.Decoder(EventStep | Layout)


def read_events(follower: StreamFollower) -> Iterable[EventStep | Layout]:
    """Yield the new events and layouts of a stream."""
    while (found := follower.poll()) is not None:
        for data in found.records if isinstance(found, Chunk) else ():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield _decoder.decode(data)


def pool_above(environment: Mapping[str, str] = os.environ) -> int:
    """Return up to how many ranks nothing is sent apart; what is no number is the default."""
    try:
        return int(environment.get("NANSCOPE_POOL_ABOVE") or POOL_ABOVE)
    except ValueError:
        return POOL_ABOVE


class Rank(Protocol):
    """A rank whose statistics are sent apart."""

    settled_step: int
    """The step up to which all events of the host are known."""

    def newest_step(self) -> int:
        """The largest step that was read."""
        ...

    def read_events(self) -> None:
        """Give `note_event` the new ones."""
        ...


class Resolution:
    """Decides for all ranks of this host.

    Args:
        run_folder: `SPOOL/<run>`; events of the helper itself are read there.
    """

    def __init__(self, run_folder: Path) -> None:
        self._watched: frozenset[int] = frozenset()
        self._events: list[int] = []
        """Buckets with an event, ascending."""
        self._own = StreamFollower(host_folder(run_folder), "host")
        self._ranks: list[Rank] = []

    def watch(self, ranks: Iterable[int]) -> None:
        """Send these ranks in full from now on, with what waits of them; of all others what is pooled."""
        self._watched = frozenset(ranks)

    def follow(self, rank: Rank) -> None:
        """Take the events of a rank of this host into account."""
        self._ranks.append(rank)

    def look(self) -> None:
        """Take in what was told of this host's ranks; now and then, and before anything is decided."""
        reached = [rank.newest_step() for rank in self._ranks]
        for record in read_events(self._own):
            if isinstance(record, EventStep):
                self.note_event(record)
        for rank in self._ranks:
            rank.read_events()
        # What is told of a step is written before later ones: events near these are known now.
        for rank, step in zip(self._ranks, reached, strict=True):
            rank.settled_step = step

    def note_event(self, event: EventStep) -> None:
        """An event of any rank of this host; those that only inform do not count."""
        bucket = event.step // POOLED_STEPS
        at = bisect.bisect_left(self._events, bucket)
        if event.severity != "info" and (at == len(self._events) or self._events[at] != bucket):
            self._events.insert(at, bucket)
            del self._events[:-_MOST_EVENTS]

    def is_full(self, rank: int, bucket: int) -> bool:
        """Whether the steps of a bucket are sent one by one."""
        if rank in ALWAYS_FULL or rank in self._watched:
            return True
        reach = -(-EVENT_STEPS // POOLED_STEPS)
        at = bisect.bisect_left(self._events, bucket - reach)
        return at < len(self._events) and self._events[at] <= bucket + reach

    def may_decide(self, bucket: int, *, settled_step: int, time_s: float) -> bool:
        """Whether no event will come any more that is near a bucket.

        Args:
            bucket: its number.
            settled_step: the step of its rank up to which all events are known.
            time_s: of one of its frames, UNIX seconds.
        """
        is_past = settled_step >= (bucket + 1) * POOLED_STEPS + EVENT_STEPS
        return is_past or abs(time.time() - time_s) > HOLD_S
