"""Finds the events that have come into the store since the last look, each once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from probe.wire import Event
from probe.wire.records import SEVERITIES

from ..store.protocol import Store

OLDEST_S: Final = 600.0
"""Events of longer ago are no news: a spool that is read in brings the history of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """An event, and what its run is called."""

    run_name: str
    event: Event


class NewsReader:
    """Used on one thread. The first look, when it is made, is for what is known already.

    Args:
        store: Has the runs.
        clock: UNIX seconds.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._revision: int | None = None
        self._counts: dict[str, dict[str, int]] = {}
        self._seen: dict[str, dict[str, tuple[int, float]]] = {}
        """Run -> event id -> (its place in SEVERITIES, its time)."""
        self.take()

    def take(self) -> list[News]:
        """Return new events, oldest first, and those that have become more severe; an episode comes once.

        Raises:
            DashboardError: the store cannot answer.
        """
        revision = self._store.revision()
        if revision == self._revision:
            return []
        found = []
        runs = self._store.runs()
        for run in runs:
            if self._counts.get(run.run) != run.event_counts:
                fresh = self._fresh(run.run, self._store.events(run.run))
                found += [News(run_name=run.name, event=event) for event in fresh]
        self._counts = {run.run: run.event_counts for run in runs}
        self._seen = {name: seen for name, seen in self._seen.items() if name in self._counts and seen}
        self._revision = revision
        return sorted(found, key=lambda news: (news.event.time, news.event.step))

    def _fresh(self, run: str, events: list[Event]) -> list[Event]:
        oldest = self._clock() - OLDEST_S
        seen = {id: known for id, known in self._seen.get(run, {}).items() if known[1] >= oldest}
        fresh = []
        for event in events:
            rank = SEVERITIES.index(event.severity)
            if event.time >= oldest and rank < seen.get(event.id, (len(SEVERITIES), 0.0))[0]:
                seen[event.id] = (rank, event.time)
                fresh.append(event)
        self._seen[run] = seen
        return fresh
