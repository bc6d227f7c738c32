"""Events of a run: a filtered list that is read page by page, and single ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Path as PathParameter
from pydantic import Field

from probe.wire import Event, Severity
from probe.wire.event_json import event_json

from ...page.views.event_facts import event_order
from ...store.members import events_of
from .context import AnyRank, ApiContext, EndStep, FirstStep, Limit, RunId, make_router, steps_between
from .models import EventList, EventModel
from .series_routes import json_answer

_CURSOR: Final = r"^[0-9a-f]{16}$"
EventId = Annotated[str, PathParameter(pattern=_CURSOR, description="id of an event")]
Cursor = Annotated[str | None, Query(pattern=_CURSOR, description="`next_cursor` of a page")]
Kind: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
Kinds = Annotated[list[Kind] | None, Query(max_length=64, description="only of these kinds")]
Severities = Annotated[list[Severity] | None, Query(max_length=3, description="only at these severities")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events are wanted; None wants all."""

    kinds: frozenset[str] | None
    severities: frozenset[str] | None
    first: int | None
    end: int | None

    def takes(self, event: Event) -> bool:
        """Whether an event is one of these."""
        return (
            (self.kinds is None or event.kind in self.kinds)
            and (self.severities is None or event.severity in self.severities)
            and (self.first is None or event.step >= self.first)
            and (self.end is None or event.step < self.end)
        )


def event_routes(context: ApiContext) -> APIRouter:
    """Return the routes of events."""
    router = make_router("events")

    @router.get(
        "/runs/{run}/events",
        summary="Events by step and time, filtered, page by page",
        response_model=EventList,
    )
    def events(
        run: RunId,
        kind: Kinds = None,
        severity: Severities = None,
        rank: AnyRank = None,
        first: FirstStep = None,
        end: EndStep = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        context.require_run(run)
        steps = steps_between(first, end)
        wanted = EventFilter(
            kinds=frozenset(kind) if kind else None,
            severities=frozenset(severity) if severity else None,
            first=steps.first,
            end=steps.end,
        )
        known = sorted(events_of(context.store, run, rank), key=event_order)
        shown, following = page_of(known, wanted, limit=limit, cursor=cursor)
        facts = {"v": 1, "run": run, "next_cursor": following}
        return json_answer({**facts, "events": [event_json(one) for one in shown]})

    @router.get("/runs/{run}/events/{event}", summary="One event", response_model=EventModel)
    def one(run: RunId, event: EventId) -> Response:
        context.require_run(run)
        found = next((one for one in events_of(context.store, run) if one.id == event), None)
        if found is None:
            raise HTTPException(404, f"run {run!r} has no event {event!r}")
        return json_answer(event_json(found))

    return router


def page_of(
    events: Sequence[Event], wanted: EventFilter, *, limit: int, cursor: str | None
) -> tuple[list[Event], str | None]:
    """Return a page of the events that are wanted, and the cursor of the next one: the id of the page's last.

    Raises:
        HTTPException: 404, no event of the run has the cursor's id.
    """
    begin = 0
    if cursor is not None:
        places = [place for place, event in enumerate(events) if event.id == cursor]
        if not places:
            raise HTTPException(404, f"there is no event {cursor!r} to go on from; read from the beginning")
        begin = places[0] + 1
    found = [event for event in events[begin:] if wanted.takes(event)]
    shown = found[:limit]
    return shown, shown[-1].id if len(found) > len(shown) else None
