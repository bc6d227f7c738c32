"""The list of events: what a row says of an event, which fault it belongs to, and the empty list. Pure.

`assets/ns_69_table.js` holds the rows, `assets/ns_68_event_list.js` draws those in view: twenty thousand
events cost no more than a screen of them. Called by the page's layout and callbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dash import html
from dash.development.base_component import Component

from probe.wire import SEVERITIES, Event
from probe.wire.causes import group_by_cause, is_of_probe
from probe.wire.event_texts import headline, kind_label

from ... import ids
from . import event_facts as facts
from .visible_text import visible_text

MOST_CONSEQUENCES: Final = 500
"""Events that are said to follow from another one, in each answer; the rest stand by themselves."""


def event_rows(events: Sequence[Event]) -> list[dict[str, Any]]:
    """One dict per event by step, the severest of a moment first; `id` is the event's id."""
    return [
        {
            "id": event.id,
            "severity": f"{facts.SEVERITY_ICONS[event.severity]} {event.severity}",
            "severity_order": SEVERITIES.index(event.severity),
            "is_last": is_of_probe(event),
            "step": event.step,
            "message": visible_text(headline(event)),
            "line": visible_text(facts.line_label(event)),
            "kind": visible_text(kind_label(event.kind)),
            "rank": event.rank,
            "count": event.count,
            "time": facts.absolute_time(event.time),
        }
        for event in sorted(events, key=facts.event_order)
    ]


def consequences(events: Sequence[Event]) -> dict[str, str]:
    """Return, for each event that followed from another one, the id of the one that began it.

    Args:
        events: all of a run.
    """
    pairs = ((event.id, cause.origin.id) for cause in group_by_cause(events) for event in cause.consequences)
    return {event: origin for (event, origin), _ in zip(pairs, range(MOST_CONSEQUENCES), strict=False)}


def event_list() -> Component:
    """Return the list, empty, with what filters it."""
    severities = [
        html.Button(
            [f"{facts.SEVERITY_ICONS[severity]} {severity} ", html.Span("0", className="ns-chip-count")],
            className="ns-chip",
            **{"data-severity": severity, "aria-pressed": "true"},
        )
        for severity in SEVERITIES
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.Div(id="events-search"),
                    html.Div(severities, id="events-severities", className="ns-chips", role="group"),
                    html.Div(id="events-kinds", className="ns-chips", role="group"),
                    html.Span("", id="events-count", className="ns-small", role="status"),
                ],
                className="ns-toolbar",
            ),
            html.Canvas(id="event-density", className="ns-density", role="img"),
            html.Div(id=ids.EVENT_TABLE, className="ns-events", role="grid", **{"aria-label": "Events"}),
        ],
        className="ns-event-list",
    )
