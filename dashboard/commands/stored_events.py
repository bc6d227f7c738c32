"""Events that the dashboard which runs has stored, for `dashboard events` where journals are not whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from probe.delivery.journal.run_folders import list_writers
from probe.delivery.journal.segment_files import list_segments
from probe.errors import WireError
from probe.wire import Event
from probe.wire.event_json import read_event_json

from ..client import Client, ClientError
from ..serving.running import find_server

_TIMEOUT_S: Final = 10.0
_NO_SERVER: Final = (
    "No dashboard runs: if one has stored the run, start it (`dashboard serve`) and try again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvents:
    """What the dashboard has of some runs."""

    page: str
    """Its address, without the token; empty where none runs."""
    runs: tuple[str, ...]
    """Those of them that it knows."""
    events: tuple[Event, ...]
    problem: str = ""
    """Why there is nothing of them; a sentence."""


def stored_events(runs: Sequence[str]) -> StoredEvents:
    """Ask the user's dashboard for the events of these runs, by their whole ids."""
    server = find_server()
    if server is None:
        return StoredEvents(page="", runs=(), events=(), problem=_NO_SERVER)
    client = Client(server.page, server.token, timeout_s=_TIMEOUT_S, certificate=server.certificate)
    try:
        known = tuple(row.run for row in client.runs() if row.run in runs)
        events = tuple(read_event_json(fields) for run in known for fields in client.events(run))
    except (ClientError, WireError) as error:
        return StoredEvents(page=server.page, runs=(), events=(), problem=f"{error}.")
    problem = "" if known else f"The dashboard at {server.page} does not know the run."
    return StoredEvents(page=server.page, runs=known, events=events, problem=problem)


def has_no_events(run_folder: Path) -> bool:
    """Whether a writer has segments, but none of the stream that begins each journal."""
    return any(
        list_segments(writer, "metrics") and not list_segments(writer, "events")
        for writer in list_writers(run_folder)
    )


def with_newer(events: Iterable[Event], others: Iterable[Event]) -> list[Event]:
    """Return all events once, each in its newer state; of two that are alike the first."""
    newest: dict[str, Event] = {}
    for event in (*events, *others):
        before = newest.get(event.id)
        if before is None or _state(event) > _state(before):
            newest[event.id] = event
    return list(newest.values())


def _state(event: Event) -> tuple[int, int, bool]:
    return event.count, event.last_step or 0, event.ended
