"""The event table below the timeline: every event as one row, reachable by keyboard. Data in, component out.

Themed through AG Grid's theming API with the page's own CSS variables, so that it follows dark and light
and loads nothing from elsewhere. Called by the page's layout and callbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dash_ag_grid as dag

from probe.wire import Event

from . import event_facts as facts

_THEME: Final = (
    "themeQuartz.withParams({backgroundColor: 'transparent', foregroundColor: 'var(--mantine-color-text)',"
    " borderColor: 'var(--mantine-color-default-border)', headerBackgroundColor: 'transparent',"
    " chromeBackgroundColor: 'transparent', browserColorScheme: 'inherit', fontFamily: 'inherit',"
    " headerFontWeight: 600, fontSize: 13, spacing: 4, wrapperBorder: false})"
)
_SEVERITY_ORDER: Final = {"critical": 0, "warning": 1, "info": 2}


def event_rows(events: Sequence[Event]) -> list[dict[str, Any]]:
    """One dict per event by step, the severest of a moment first; `id` is the event's id."""
    return [
        {
            "id": event.id,
            "severity": f"{facts.SEVERITY_ICONS[event.severity]} {event.severity}",
            "severity_order": _SEVERITY_ORDER[event.severity],
            "is_last": event.kind in facts.LISTED_LAST,
            "step": event.step,
            "message": facts.headline(event),
            "line": facts.line_label(event),
            "kind": facts.kind_label(event.kind),
            "rank": event.rank,
            "count": event.count,
            "time": facts.absolute_time(event.time),
        }
        for event in sorted(events, key=facts.event_order)
    ]


def event_table(events: Sequence[Event] = (), *, id: str = "event-table", height: str = "100%") -> dag.AgGrid:
    """Draw the events as a grid whose row ids are event ids; a selected row is `selectedRows[0]["id"]`."""
    return dag.AgGrid(
        id=id,
        columnDefs=_columns(),
        rowData=event_rows(events),
        getRowId="params.data.id",
        defaultColDef={"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions={
            "theme": {"function": _THEME},
            "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            "animateRows": False,
            "localeText": {"noRowsToShow": "No events: nothing out of the ordinary so far."},
            "ensureDomOrder": True,
        },
        style={"height": height, "width": "100%"},
        className="event-table",
    )


def _columns() -> list[dict[str, Any]]:
    """Whole texts are a tooltip away: a narrow column never hides a name for good."""
    return [
        {
            "field": "severity_order",
            "headerName": "Severity",
            "width": 110,
            "valueFormatter": {"function": "params.data.severity"},
            "cellClassRules": {
                f"severity-{name}": f"params.data.severity_order === {order}"
                for name, order in _SEVERITY_ORDER.items()
            },
        },
        {
            "field": "step",
            "headerName": "Step",
            "width": 85,
            "type": "rightAligned",
            "sort": "desc",
            "comparator": {"function": "compareSteps"},
            "valueFormatter": {"function": "d3.format(',')(params.value)"},
        },
        {"field": "message", "headerName": "Event", "flex": 3, "minWidth": 300, "tooltipField": "message"},
        {"field": "line", "headerName": "Line", "flex": 2, "minWidth": 190, "tooltipField": "line"},
        {"field": "kind", "headerName": "Kind", "width": 170, "tooltipField": "kind"},
        {
            "field": "count",
            "headerName": "Count",
            "width": 80,
            "type": "rightAligned",
            "valueFormatter": {"function": "d3.format(',')(params.value)"},
        },
        {"field": "rank", "headerName": "Rank", "width": 75, "type": "rightAligned"},
        {"field": "time", "headerName": "Time", "width": 200, "tooltipField": "time"},
    ]
