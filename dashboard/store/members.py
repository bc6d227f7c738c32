"""The members of a run: models made one after the other, each kept as a run of its own beside the first.

The journal is one run's, and so are what is asked of its trainers, its deletion and its list of events. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from probe.wire import Event, member_number

from .protocol import RunSummary, Store

_MOST_JUDGED: Final = 32
"""Members whose events a verdict is chosen from, five times a second: the first and last that have any."""


def members_of(runs: Sequence[RunSummary], run: str) -> list[str]:
    """Return the ids of a run and of its further members; of a member its own alone."""
    later = [(one.member or 0, one.run) for one in runs if one.recorded_as == run and one.run != run]
    return [run, *(name for _, name in sorted(later))]


def recorded_as(runs: Sequence[RunSummary], run: str) -> str:
    """Return the id of the run whose journal has a member; that of another run is its own."""
    return next((one.recorded_as for one in runs if one.run == run), run)


def events_of(store: Store, run: str, rank: int | None = None) -> list[Event]:
    """Return the events of a run with those of its members, as its journal has them."""
    runs = store.runs()
    members, own = members_of(runs, run), recorded_as(runs, run)
    return [
        as_recorded(event, own, has_members=len(members) > 1)
        for member in members
        for event in store.events(member, rank)
    ]


def events_of_verdict(store: Store, runs: Sequence[RunSummary], run: RunSummary) -> list[Event]:
    """Return the events that a verdict on a run is chosen from: of all members, those of the worst ones."""
    members = [one for one in runs if one.recorded_as == run.recorded_as]
    severity = next(
        (each for each in ("critical", "warning") if any(one.event_counts.get(each) for one in members)), None
    )
    if run.member is None or severity is None:
        return store.events(run.run)
    worst = [one for one in members if one.event_counts.get(severity)]
    worst = sorted(worst, key=lambda one: one.member or 0)
    if len(worst) > _MOST_JUDGED:
        worst = [*worst[: _MOST_JUDGED // 2], *worst[-_MOST_JUDGED // 2 :]]
    return [as_recorded(event, one.run, has_members=True) for one in worst for event in store.events(one.run)]


def counts_of(runs: Sequence[RunSummary], run: RunSummary) -> tuple[int, int]:
    """Return the critical events and the warnings of a run with all its members."""
    members = [one.event_counts for one in runs if one.recorded_as == run.recorded_as]
    return sum(one.get("critical", 0) for one in members), sum(one.get("warning", 0) for one in members)


def as_recorded(event: Event, run: str, *, has_members: bool) -> Event:
    """Return an event under the id of its run; with its number also where it is of the first member."""
    member = member_number(event.member) if has_members else event.member
    if event.run == run and event.member == member:
        return event
    return msgspec.structs.replace(event, run=run, member=member)
