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
    """Return the panel of one tensor, closed. Canvases are made by the scripts, texts by the callbacks."""
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
                ["Full width ", html.Kbd("f")],
                id="row-wide",
                className="ns-button",
                title="Over the whole page, or beside the charts (f)",
                **{"aria-pressed": "false"},
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
            _watch(),
            _over_steps(),
            html.Div(id=ids.ROW_ABSENT),
            _histograms(),
            html.Div(id=ids.ROW_TABLES),
            _newest(),
        ],
        className="ns-aside-content event-panel",
    )
    return html.Aside(
        [bar, content],
        id=ids.ROW_ASIDE,
        className="ns-aside",
        hidden=True,
        **{"aria-label": "Tensor"},
    )


def _watch() -> Component:
    """A watchpoint on the tensor: a condition that can be changed, and the button that sends it."""
    condition = dmc.TextInput(
        id=ids.ROW_CONDITION,
        label="Make an event when",
        size="xs",
        className="ns-watchpoint-condition",
        autoComplete="off",
        spellCheck=False,
        n_submit=0,
        value="",
        error="",
    )
    button = html.Button("Watch this", id=ids.ROW_WATCH, className="ns-button", n_clicks=0)
    said = html.P("", id=ids.ROW_WATCH_SAID, className="ns-small", role="status", **{"aria-live": "polite"})
    return html.Div([html.Div([condition, button], className="ns-watchpoint-form"), said], id="row-watching")


def _over_steps() -> Component:
    """Small tracks of its statistics; the arrow keys read the values of a step."""
    return html.Section(
        [
            html.H3("Over the steps in view"),
            html.Div(
                id="row-tracks-canvases",
                role="group",
                tabIndex=0,
                **{"aria-label": "Statistics over steps; arrow keys read the values of a step"},
            ),
        ],
        id="row-over-steps",
        className="event-section",
        hidden=True,
    )


def _histograms() -> Component:
    """A canvas for each kind of histogram, and what a cast to a narrower format loses under the pointer."""
    return html.Section(
        [
            html.H3("Histograms over time"),
            html.Div(id="row-canvases"),
            html.P(
                "One column for each stored histogram, the newest 64 at most. Colour is the share of the "
                "elements, on a log scale; dotted lines are where a number format begins and ends.",
                className="magnitude-note",
            ),
        ],
        id="row-over-time",
        className="event-section",
        hidden=True,
    )


def _newest() -> Component:
    """The last values as a table, newest first; the scripts fill it in."""
    table = html.Table(
        [html.Thead(id="row-newest-head"), html.Tbody(id="row-newest-rows")],
        className="event-evidence tensor-newest",
    )
    scroll = html.Div(
        table, className="event-wide", tabIndex=0, role="group", **{"aria-label": "The last values"}
    )
    return html.Section(
        [html.H3("The last values"), scroll], id="row-newest", className="event-section", hidden=True
    )
