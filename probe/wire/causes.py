"""Groups the events of a run by cause, and picks the one that a verdict on the run names. Pure functions.

A NaN reaches loss, gradients and parameters within two steps, and stays: five events, one fault. The page's
verdict line and list of events, the closing line of a training, a notebook's card and `dashboard events`
choose by the same functions, and name the first of them, never a victim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .event_places import is_only_noticed
from .identities import member_number
from .records import SEVERITIES, Event, Severity

_STAGES: Final = (
    *("nonfinite_input", "nonfinite_activation", "nonfinite_loss", "nonfinite_gradient"),
    "nonfinite_parameter",
)
"""A value that is not finite goes this way through a step."""
_NEAR: Final = 2
"""Steps after the last bad one within which another that is not finite belongs to it: a check of parameters
comes a step later than that of the gradients."""
_OF_THE_PROBE: Final = frozenset({"throttled"})
"""Kinds that say nothing of the training, unless they name what was lost (`Event.propagated_to`)."""


@dataclass(slots=True)
class Cause:
    """A fault: the event that began it, and those that followed from it."""

    origin: Event
    consequences: list[Event] = field(default_factory=list)

    @property
    def events(self) -> tuple[Event, ...]:
        """All of them, the origin first."""
        return (self.origin, *self.consequences)

    @property
    def severity(self) -> Severity:
        """That of its severest event."""
        return min((event.severity for event in self.events), key=SEVERITIES.index)

    @property
    def is_over(self) -> bool:
        """Whether all of its events have ended."""
        return all(event.ended for event in self.events)

    @property
    def last_step(self) -> float:
        """Newest step that it is known of; infinite while something of it goes on."""
        return max(math.inf if not event.ended else _last(event) for event in self.events)

    def takes(self, event: Event) -> bool:
        """Whether an event of the same start of the run, that comes no earlier, follows from this one."""
        if event.kind == "replayed":
            return event.step == self.origin.step and event.rank == self.origin.rank
        return event.kind in _STAGES and event.step <= self.last_step + _NEAR


def group_by_cause(events: Iterable[Event]) -> list[Cause]:
    """Return the faults of a run in order of time: of its starts and members, then of step.

    Args:
        events: of all ranks and models of a run, in any order.
    """
    starts = _starts(events := list(events))
    causes: list[Cause] = []
    chain: Cause | None = None
    of_chain = (0, 0)

    def training_of(event: Event) -> tuple[int, int]:
        # A member's steps begin at 0: nothing in it follows from the one before.
        return starts[event.rank, event.incarnation], member_number(event.member)

    for event in sorted(events, key=lambda event: (training_of(event), *_order(event))):
        start = training_of(event)
        if chain is not None and of_chain == start and chain.takes(event):
            chain.consequences.append(event)
            continue
        causes.append(Cause(event))
        if event.kind in _STAGES:
            chain, of_chain = causes[-1], start
    for cause in causes:
        cause.consequences.sort(key=lambda event: (event.step, _stage(event), event.time, event.id))
    return causes


def worst_cause(causes: Sequence[Cause]) -> Cause | None:
    """Return the fault that a verdict names; None where there is no warning and nothing critical.

    Of the critical ones it is the earliest that goes on, else the newest. Of warnings it is the first, over
    or not: a run that had one is not a run without.

    Args:
        causes: in order of time, see `group_by_cause`.
    """
    critical = [cause for cause in causes if cause.severity == "critical"]
    if critical:
        return next((cause for cause in critical if not cause.is_over), critical[-1])
    return next((cause for cause in causes if cause.severity == "warning"), None)


def is_of_probe(event: Event) -> bool:
    """Whether an event is about the probe's own work alone: in no list by default, in no count."""
    return event.kind in _OF_THE_PROBE and not event.propagated_to


def of_newest_start(events: Sequence[Event], starts: Mapping[int, int] | None = None) -> list[Event]:
    """Return the events since the newest start of their rank: what was wrong before a restart is over.

    Args:
        events: of a run, in any order.
        starts: rank -> its newest incarnation: one that has no event is known from here alone.
    """
    newest = dict(starts or {})
    for event in events:
        newest[event.rank] = max(newest.get(event.rank, 0), event.incarnation)
    return [event for event in events if event.incarnation == newest[event.rank]]


def _starts(events: Sequence[Event]) -> dict[tuple[int, int], int]:
    """Number the starts of each rank: its incarnations are times, which differ from those of other ranks."""
    found: dict[int, set[int]] = {}
    for event in events:
        found.setdefault(event.rank, set()).add(event.incarnation)
    # Counted from the newest: a rank without events of its first start has one less.
    return {
        (rank, incarnation): -number
        for rank, incarnations in found.items()
        for number, incarnation in enumerate(sorted(incarnations, reverse=True))
    }


def _order(event: Event) -> tuple[object, ...]:
    """By step; of one step what says nothing of the training last, a proven origin first."""
    is_proven = event.origin is not None and not is_only_noticed(event)
    moment = (event.step, is_of_probe(event))
    return (*moment, not is_proven, _stage(event), event.time, SEVERITIES.index(event.severity), event.id)


def _stage(event: Event) -> int:
    return _STAGES.index(event.kind) if event.kind in _STAGES else len(_STAGES)


def _last(event: Event) -> int:
    return event.step if event.last_step is None else max(event.step, event.last_step)
