"""`dashboard events`: a run's events from its journals, as JSON lines or as a table for reading.

Where parts of the journals are missing, the dashboard that runs is asked: its store may have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from msgspec import UNSET

from probe.delivery.helper.helper import lock_owner, lock_path
from probe.delivery.helper.unseen_deaths import unseen_deaths
from probe.delivery.journal.rank_journals import events_of_ranks
from probe.delivery.journal.run_folders import list_writers
from probe.delivery.journal.segment_files import list_segments, run_folder_bytes
from probe.wire import Event, member_number
from probe.wire.causes import is_of_probe
from probe.wire.event_json import event_json
from probe.wire.event_texts import headline, kind_label, led_to_it

from ..errors import DashboardError, UnknownRunError
from ..page.views import event_facts as facts
from ..runs import (
    JournalEvents,
    RunFolder,
    lacks_records,
    no_such_member,
    printable,
    read_events,
    resolve_runs,
)
from .stored_events import StoredEvents, has_no_events, stored_events, with_newer

_READ_AGAIN_BYTES: Final = 64 * 1024**2
"""Journals up to this size are compared even while a helper does so, which is up to a second behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEvents:
    """What RUN|SPOOL has."""

    events: tuple[Event, ...]
    """By training in order of time, in each by step and time."""
    unreadable: int
    """Records that are missing, damaged or do not decode."""
    runs: tuple[RunFolder, ...]
    """Where they come from, oldest first."""
    stored: StoredEvents | None = None
    """What the dashboard has; None where nothing is missing and nobody was asked."""
    added: int = 0
    """Events that are its, or whose newer state is."""
    missing_steps: int = 0
    """Records of steps that are missing at the end of a journal."""
    odd_files: tuple[str, ...] = ()
    """Files that were passed over; sentences."""
    models: int = 1
    """Most that a run of these has made one after the other."""


def load_events(target: str | None) -> LoadedEvents:
    """Read the events of RUN|SPOOL, and what its ranks' journals show together where nobody has watched them.

    Args:
        target: None means the newest training.

    Raises:
        DashboardError: the argument names no spool and no run, and no run of the dashboard that runs.
    """
    try:
        runs = resolve_runs(target)
    except UnknownRunError:
        # The spool's cap, or somebody, has deleted its folder.
        known = stored_events([target]) if target is not None else None
        if known is None or not known.runs:
            raise
        return LoadedEvents(events=known.events, unreadable=0, runs=(), stored=known, added=len(known.events))
    recorded = {run.run: read_events([run.path]) for run in runs}
    missing = [run.run for run in runs if recorded[run.run].unreadable or has_no_events(run.path)]
    stored = stored_events(missing) if missing else None
    own = [event for run in runs for event in known_events(run, recorded[run.run])]
    began: dict[str, tuple[float, str]] = {}
    for run in runs:
        began.setdefault(run.group, (run.started, run.run))
    places = {run.run: began[run.group] for run in runs}
    merged = with_newer(own, stored.events if stored is not None else ())
    events = sorted(
        merged,
        key=lambda event: (
            places.get(event.run, (0.0, event.run)),
            member_number(event.member),
            facts.event_order(event),
        ),
    )
    unreadable = sum(one.unreadable for one in recorded.values())
    own_ids = {id(event) for event in own}
    return LoadedEvents(
        events=tuple(events),
        unreadable=unreadable,
        runs=tuple(runs),
        stored=stored,
        added=sum(id(event) not in own_ids for event in merged),
        missing_steps=sum(one.missing_steps for one in recorded.values()),
        models=max((one.models for one in recorded.values()), default=1),
        odd_files=tuple(
            f"Run {run}, {printable(said)}" for run, one in recorded.items() for said in one.odd_files
        ),
    )


def known_events(run: RunFolder, recorded: JournalEvents) -> list[Event]:
    """Return a run's events, and what its journals show that nobody has written: of ranks, and of deaths."""
    of_ranks = _of_ranks(run, recorded)
    return [*recorded.events, *of_ranks, *unseen_deaths(run.path, recorded.events)]


def events_of_model(found: LoadedEvents, member: int) -> tuple[Event, ...]:
    """Return the events of one of the models that a run made one after the other.

    Raises:
        UnknownRunError: it has made fewer, or they are of several runs.
    """
    if len(found.runs) != 1:
        raise UnknownRunError("`--member` takes one of the models of one run; give its id.")
    (run,) = found.runs
    if not 0 <= member < found.models:
        raise no_such_member(run.run, member, found.models)
    return tuple(event for event in found.events if member_number(event.member) == member)


def one_event(found: LoadedEvents, event: str) -> Event:
    """Return the event with this id, or with an id that begins so and no other does.

    Raises:
        DashboardError: there is none, or more than one.
    """
    fitting = [one for one in found.events if event and one.id.startswith(event.lower())]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise DashboardError(f"{len(fitting)} events have an id that begins with {event!r}; give more of it.")
    runs = ", ".join(dict.fromkeys(run.run for run in found.runs)) or "the run"
    near = get_close_matches(event.lower(), [one.id for one in found.events], n=1)
    hint = f"Did you mean {near[0]}?" if near else "`dashboard events RUN` lists them, each with its id."
    raise DashboardError(f"No event {event!r} in {printable(runs)}. {hint}")


def notices(found: LoadedEvents) -> Iterator[str]:
    """Say where the list comes from, where parts of the journals are missing."""
    yield from (f"{said}." for said in found.odd_files)
    if found.missing_steps:
        yield (
            f"The journal lacks its newest records of steps: {found.missing_steps:,}; "
            "the list of events is not affected."
        )
    stored = found.stored
    if stored is None:
        return
    what = f"The journal {lacks_records(found.unreadable)}"
    if not found.runs:
        what = "The journals of the run are gone"
    elif not found.unreadable:
        what = "The journal of the events is gone"
    if stored.problem:
        yield f"{what}; the rest is shown. {stored.problem}"
    elif not found.added:
        yield f"{what}; the rest is shown. The dashboard at {stored.page} has no more of it."
    else:
        yield f"{what}; {found.added:,} of the events are from the store of the dashboard at {stored.page}."


def _of_ranks(run: RunFolder, recorded: JournalEvents) -> list[Event]:
    """What the ranks show together and no helper has written: it has the same ids as that of a helper."""
    if _was_watched(run):
        return []
    known = {event.id: event for event in recorded.events if event.run == run.run}
    return [event for event in events_of_ranks(run.path, known.values()) if event.id not in known]


def _was_watched(run: RunFolder) -> bool:
    """Whether one helper has seen all ranks, and has said of them what there is, or soon will have."""
    helpers = [writer for writer in list_writers(run.path) if list_segments(writer, "host")]
    if len(helpers) != 1:
        return False
    is_at_work = lock_owner(lock_path(helpers[0])) is not None
    return not is_at_work or run_folder_bytes(run.path) > _READ_AGAIN_BYTES


def json_lines(events: Sequence[Event]) -> Iterator[str]:
    """One JSON object per event, as docs/interfaces.md fixes it; non-finite numbers are strings."""
    for event in events:
        yield json.dumps(event_json(event), allow_nan=False)


def table_lines(events: Sequence[Event]) -> Iterator[str]:
    """A headline per event with its run, model where there are several, rank, line, id and cause below it.

    What is about the probe alone stands at the end, and is not counted.
    """
    has_models = len({event.model for event in events if event.model}) > 1
    quiet = [event for event in events if is_of_probe(event)]
    for event in events:
        if event in quiet:
            continue
        icon = facts.SEVERITY_ICONS[event.severity]
        yield f"{icon} {event.severity:<8}  {printable(headline(event))}"
        line = facts.line_label(event)
        where = f", {line}" if line else ""
        who = f"rank {event.rank}" + (f", model {event.model}" if has_models and event.model else "")
        if event.member is not UNSET:
            who += f", model {event.member + 1:,}"
        detail = f"step {event.step:,}, {who}, {kind_label(event.kind)}, {facts.episode(event)}"
        yield f"    {printable(detail + where)}  {_address(event)}"
        yield from (f"    {printable(sentence)}" for sentence in led_to_it(event))
    yield facts.severity_counts(events)
    yield from (f"not counted: {printable(headline(event))}  {_address(event)}" for event in quiet)


def _address(event: Event) -> str:
    """What `dashboard events` takes to show it whole."""
    return f"[{printable(event.run)} {event.id}]"
