"""`dashboard events`: a run's events from its journals alone, as JSON lines or as a table for reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from probe.event_json import event_json
from probe.wire import Event

from ..runs import JournalEvents, read_events, resolve_runs
from ..views import event_facts as facts


def load_events(target: str) -> JournalEvents:
    """Read the events of RUN|SPOOL.

    Raises:
        DashboardError: the argument names no spool and no run.
    """
    return read_events([run.path for run in resolve_runs(target)])


def json_lines(events: Sequence[Event]) -> Iterator[str]:
    """One JSON object per event, as INTERFACES fixes it; non-finite numbers are strings."""
    for event in events:
        yield json.dumps(event_json(event), allow_nan=False)


def table_lines(events: Sequence[Event]) -> Iterator[str]:
    """A headline per event with its run, rank, line and id below it."""
    for event in events:
        icon = facts.SEVERITY_ICONS[event.severity]
        yield f"{icon} {event.severity:<8}  {_printable(facts.headline(event))}"
        frame = facts.fault_frame(event)
        where = f", {facts.frame_label(frame)}" if frame is not None else ""
        detail = (
            f"step {event.step:,}, rank {event.rank}, {facts.kind_label(event.kind)}, {facts.episode(event)}"
        )
        yield f"    {_printable(detail + where)}  [{_printable(event.run)} {event.id}]"
    yield facts.severity_counts(events)


def _printable(text: str) -> str:
    """Text of a run without control characters: a terminal would obey them."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
