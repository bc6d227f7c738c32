"""Makes the events that only several ranks together show, out of what all hosts ship. No database here.

Used by `Intake`, under the store's lock. A helper sees the ranks of its own host and makes the same events of
them, with the same ids: what both find is one event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from probe.detectors.ranks.rank_watch import KINDS, RankWatch
from probe.wire import Event, Frame, HostSample, Layout, RunEnd

from .catalog import Catalog
from .incarnation import Incarnation

_MAX_RUNS: Final = 256
"""Runs that are followed at a time; the one that has been silent for longest is forgotten."""
_CAP_BYTES: Final = 16 * 1024 * 1024
"""Room for the samples of a model that wait for other ranks: a rank's batch may hold a thousand steps."""


class RankEvents:
    """Follows the ranks of the runs that are arriving."""

    def __init__(self) -> None:
        self._watches: OrderedDict[str, RankWatch] = OrderedDict()

    def knows(self, run: str) -> bool:
        """Whether a run is followed already."""
        return run in self._watches

    def begin(self, run: str, events: Iterable[Event]) -> None:
        """Follow a run.

        Args:
            run: its id.
            events: what the store has of it: an event that is running goes on, and is not made anew.
        """
        if run in self._watches:
            return
        watch = self._watches[run] = RankWatch(run, cap_bytes=_CAP_BYTES)
        for event in events:
            if event.kind in KINDS:
                watch.event(event)
        if len(self._watches) > _MAX_RUNS:
            self._watches.popitem(last=False)

    def _watch_of(self, entry: Incarnation) -> RankWatch | None:
        """Return who follows a run; its members have its journal."""
        return self._watches.get(entry.description().run)

    def take_frame(self, catalog: Catalog, entry: Incarnation, frame: Frame) -> None:
        """A frame of a rank has arrived."""
        watch = self._watch_of(entry)
        if watch is None or entry.start is None or entry.start.world_size < 2:
            return
        if not watch.follows(entry.rank, entry.number):
            # It has said who it is to an earlier dashboard.
            watch.start(entry.start)
            for number, timeline in entry.layouts.items():
                layout = msgspec.structs.replace(catalog.layout(timeline)[0], layout=number)
                watch.layout(entry.rank, entry.number, layout)
        watch.frame(entry.rank, entry.number, frame)

    def take_layout(self, entry: Incarnation, layout: Layout) -> None:
        """A rank has said what its model is."""
        watch = self._watch_of(entry)
        if watch is not None and entry.start is not None:
            watch.start(entry.start)
            watch.layout(entry.rank, entry.number, layout)

    def take_event(self, event: Event) -> None:
        """An event of a rank, or of a helper."""
        if (watch := self._watches.get(event.run)) is not None:
            watch.event(event)

    def take_end(self, entry: Incarnation, ended: RunEnd | HostSample) -> None:
        """A rank has ended, or its process is gone."""
        watch = self._watches.get(entry.run)
        if watch is not None and not (isinstance(ended, HostSample) and ended.state == "running"):
            last_step = ended.step if isinstance(ended, RunEnd) else None
            watch.over(entry.rank, entry.number, last_step=last_step)

    def found(self, run: str) -> list[Event]:
        """Return the events that are new or have changed."""
        watch = self._watches.get(run)
        if watch is None:
            return []
        self._watches.move_to_end(run)
        return watch.take()

    def forget(self, run: str) -> None:
        """Follow a run no more: it has been deleted."""
        self._watches.pop(run, None)
