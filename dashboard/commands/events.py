"""`dashboard events`: a run's events from its journals, as JSON lines or as a table for reading.

Where parts of the journals are missing, the dashboard that runs is asked: its store may have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from probe.delivery.helper.helper import lock_owner, lock_path
from probe.delivery.helper.unseen_deaths import unseen_deaths
from probe.delivery.journal.rank_journals import events_of_ranks
from probe.delivery.journal.run_folders import list_writers
from probe.delivery.journal.segment_files import list_segments, run_folder_bytes
from probe.wire import Event, message_lines
from probe.wire.event_json import event_json
from probe.wire.event_texts import headline, kind_label

from ..errors import UnknownRunError
from ..page.views import event_facts as facts
from ..runs import JournalEvents, RunFolder, printable, read_events, resolve_runs
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


def load_events(target: str) -> LoadedEvents:
    """Read the events of RUN|SPOOL, and what its ranks' journals show together where nobody has watched them.

    Raises:
        DashboardError: the argument names no spool and no run, and no run of the dashboard that runs.
    """
    try:
        runs = resolve_runs(target)
    except UnknownRunError:
        # The spool's cap, or somebody, has deleted its folder.
        known = stored_events([target])
        if not known.runs:
            raise
        return LoadedEvents(events=known.events, unreadable=0, runs=(), stored=known, added=len(known.events))
    recorded = {run.run: read_events([run.path]) for run in runs}
    of_ranks = [event for run in runs for event in _of_ranks(run, recorded[run.run])]
    deaths = [event for run in runs for event in unseen_deaths(run.path, recorded[run.run].events)]
    missing = [run.run for run in runs if recorded[run.run].unreadable or has_no_events(run.path)]
    stored = stored_events(missing) if missing else None
    own = [*(event for one in recorded.values() for event in one.events), *of_ranks, *deaths]
    began: dict[str, tuple[float, str]] = {}
    for run in runs:
        began.setdefault(run.group, (run.started, run.run))
    places = {run.run: began[run.group] for run in runs}
    merged = with_newer(own, stored.events if stored is not None else ())
    events = sorted(
        merged,
        key=lambda event: (places.get(event.run, (0.0, event.run)), facts.event_order(event)),
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
        odd_files=tuple(
            f"Run {run}, {printable(said)}" for run, one in recorded.items() for said in one.odd_files
        ),
    )


def notices(found: LoadedEvents) -> Iterator[str]:
    """Say where the list comes from, where parts of the journals are missing."""
    yield from (f"{said}." for said in found.odd_files)
    if found.missing_steps:
        yield (
            f"Records of steps that are missing at the end of the journal: {found.missing_steps:,}; "
            "events are another stream."
        )
    stored = found.stored
    if stored is None:
        return
    what = f"Missing or damaged records of the journal: {found.unreadable:,}"
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
    """A headline per event with its run, model where there are several, rank, line and id below it."""
    has_models = len({event.model for event in events if event.model}) > 1
    for event in events:
        icon = facts.SEVERITY_ICONS[event.severity]
        yield f"{icon} {event.severity:<8}  {printable(headline(event))}"
        line = facts.line_label(event)
        where = f", {line}" if line else ""
        who = f"rank {event.rank}" + (f", model {event.model}" if has_models and event.model else "")
        detail = f"step {event.step:,}, {who}, {kind_label(event.kind)}, {facts.episode(event)}"
        yield f"    {printable(detail + where)}  [{printable(event.run)} {event.id}]"
        if why := message_lines.why_no_line(event.message):
            yield f"    {printable(why)}"
    yield facts.severity_counts(events)
