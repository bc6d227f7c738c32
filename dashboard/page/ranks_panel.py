"""The view Ranks: tools, what stands out, the matrix of ranks and steps, the picked rank against the median.

Built once per server; filled in by `assets/ns_57_ranks.js` to `ns_59_ranks_track.js`.
"""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from .axis_kinds import axis_kinds
from .views.rank_statistics import RANK_STATISTICS

ORDERS: Final = (("", "By host"), ("distance", "By distance"), ("time", "By step time"))

STEPS: Final = {"data-steps": "true"}
"""Marks a plot over steps as one that the pointer zooms and pans (`assets/ns_46_pointer.js`)."""


def ranks_panel() -> list[Component]:
    """Return what stands in the view."""
    return [
        html.Div("", id="ranks-empty", className="ns-none", role="status"),
        html.Div(
            [_tools(), _said(), _head(), _body(), _track(), _axis(), _caption()], id="ranks", hidden=True
        ),
    ]


def _tools() -> Component:
    select = html.Select(
        [html.Option(each.label, value=each.id) for each in RANK_STATISTICS],
        id="ranks-select",
        className="ns-heading",
        **{"aria-label": "What is compared over the ranks"},
    )
    orders = [
        html.Button(
            label,
            className="ns-layers-scale",
            type="button",
            **{"data-order": value, "aria-pressed": str(value == "").lower()},
        )
        for value, label in ORDERS
    ]
    return html.Div(
        [
            html.Label(["Distance of ", select], className="ns-ranks-choice"),
            html.Div(
                orders, id="ranks-order", className="ns-ranks-order", role="group", **{"aria-label": "Order"}
            ),
            html.Span(className="ns-spacer"),
            html.Span("", id="ranks-facts", className="ns-small"),
        ],
        className="ns-ranks-tools",
    )


def _said() -> Component:
    return html.Div(id="ranks-said", className="ns-ranks-said", role="status", **{"aria-live": "polite"})


def _head() -> Component:
    return html.Div(
        [
            html.Div([html.Span("Host, rank"), html.Span("distance")], className="ns-ranks-left"),
            html.Div(id="ranks-scale", className="ns-ranks-scale"),
            html.Div(
                [html.Span("", id="ranks-times-head"), html.Span(id="ranks-times-ends")],
                className="ns-ranks-right",
            ),
        ],
        className="ns-ranks-line ns-ranks-head ns-small",
    )


def _body() -> Component:
    """The list is the alternative of the picture; it has the keys."""
    rows = html.Div(
        id="ranks-list",
        className="ns-ranks-left",
        role="listbox",
        tabIndex=0,
        **{"aria-label": "Ranks; up and down move, left and right read other steps, Enter picks a rank"},
    )
    plot = html.Div(
        [
            html.Canvas(id="ranks-canvas", **{"aria-hidden": "true"}),
            html.Div(id="ranks-picked", className="ns-ranks-picked", hidden=True),
            html.Div(id="ranks-origin", className="ns-ranks-origin", hidden=True),
            html.Div(id="ranks-crosshair", className="ns-ranks-crosshair", hidden=True),
        ],
        className="ns-ranks-plot",
        **STEPS,
    )
    times = html.Canvas(id="ranks-times", className="ns-ranks-right", **{"aria-hidden": "true"})
    body = html.Div([rows, plot, times], id="ranks-body", className="ns-ranks-line ns-ranks-body")
    strip = html.Canvas(id="ranks-map", className="ns-ranks-map", hidden=True, **{"aria-hidden": "true"})
    return html.Div([body, strip], className="ns-ranks-frame")


def _track() -> Component:
    gutter = html.Div(
        [
            html.Div("", id="ranks-track-name", className="ns-track-name"),
            html.Div(
                [
                    html.Span("", id="ranks-own", className="ns-tile-value"),
                    html.Span("", id="ranks-own-name"),
                ],
                className="ns-ranks-own",
            ),
            html.Div(
                [html.Span("", id="ranks-median", className="ns-tile-value"), html.Span("median")],
                className="ns-ranks-median",
            ),
            html.Div("band: all other ranks", className="ns-small"),
            html.Div(id="ranks-ticks", className="ns-ranks-ticks", **{"aria-hidden": "true"}),
        ],
        className="ns-ranks-left",
    )
    line = html.Canvas(id="ranks-line", role="img", **{"aria-label": "The picked rank and the median"})
    side = html.Dl(
        [
            *_fact("host", "ranks-side-host"),
            *_fact("at", "ranks-at"),
            *_fact("distance", "ranks-distance"),
            *_fact(html.Span("", id="ranks-time-name"), "ranks-time-own"),
            *_fact("95th percentile", "ranks-time-high"),
            *_fact("median of ranks", "ranks-time-median"),
        ],
        className="ns-ranks-right ns-ranks-side",
    )
    return html.Div(
        [gutter, html.Div(line, className="ns-ranks-plot", **STEPS), side],
        className="ns-ranks-line ns-ranks-track",
    )


def _fact(name: str | Component, value: str) -> list[Component]:
    """Return a name with the element of its value."""
    return [html.Dt(name), html.Dd("", id=value)]


def _axis() -> Component:
    return html.Div(
        [
            html.Div(axis_kinds("ranks-kind"), className="ns-ranks-left"),
            html.Div(
                id="ranks-axis", className="ns-ranks-plot ns-ranks-axis", **{"aria-hidden": "true", **STEPS}
            ),
            html.Span(className="ns-ranks-right"),
        ],
        className="ns-ranks-line ns-ranks-foot",
    )


def _caption() -> Component:
    return html.P("", id="ranks-caption", className="ns-ranks-caption ns-small")
