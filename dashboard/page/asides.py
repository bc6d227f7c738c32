"""The panels beside the charts: an event's, and that of one parameter, layer or module. One is open at most.

Built once per server; filled in by the callbacks, opened and closed by the scripts in `assets/`.
"""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from .. import ids
from .views.event_panel import event_panel


def event_aside() -> Component:
    """Return the event's panel, closed."""
    bar = html.Div(
        [
            html.Button(
                "\u2039 Previous", id="event-previous", className="ns-button", title="Previous event (p)"
            ),
            html.Button("Next \u203a", id="event-next", className="ns-button", title="Next event (n)"),
            html.Span("", id="event-position", className="ns-position"),
            html.Button(
                "\u00d7",
                id="aside-close",
                className="ns-button ns-close",
                title="Close (Escape)",
                **{"aria-label": "Close"},
            ),
        ],
        className="ns-aside-bar",
    )
    return html.Aside(
        [bar, html.Div(event_panel(None), id=ids.EVENT_PANEL, className="ns-aside-content")],
        id=ids.EVENT_ASIDE,
        className="ns-aside",
        hidden=True,
        **{"aria-label": "Event"},
    )


def row_aside() -> Component:
    """Return the panel of one row, closed. Its plot stays in place; what is around it is filled in."""
    bar = html.Div(
        [
            dmc.Select(
                id=ids.ROW_SELECT,
                data=[],
                placeholder="parameter, layer or module",
                searchable=True,
                clearSearchOnFocus=True,
                allowDeselect=False,
                limit=100,
                size="xs",
                className="ns-row-select",
                nothingFoundMessage="no such name",
                withScrollArea=False,
                comboboxProps={"position": "bottom-start"},
                **{"aria-label": "Parameter, layer or module"},
            ),
            html.Button(
                "\u00d7",
                id="row-close",
                className="ns-button ns-close",
                title="Close (Escape)",
                **{"aria-label": "Close"},
            ),
        ],
        className="ns-aside-bar",
    )
    content = html.Div(
        [
            html.Div(id=ids.ROW_HEAD),
            html.Div(
                id="plot-row",
                role="img",
                hidden=True,
                **{"aria-label": "Histograms of magnitudes; the tables below say the same"},
            ),
            html.Div(id=ids.ROW_TABLES),
        ],
        className="ns-aside-content event-panel",
    )
    return html.Aside(
        [bar, content],
        id=ids.ROW_ASIDE,
        className="ns-aside",
        hidden=True,
        **{"aria-label": "Histograms"},
    )
