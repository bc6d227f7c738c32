"""The icicle of modules in the view Profile: each module as wide as its time, its children below it.

Built once per server; filled in by `assets/ns_78_icicle.js`.
"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component


def icicle_panel() -> Component:
    """Return the picture with its words at the left."""
    canvas = html.Canvas(
        id="icicle-canvas",
        role="slider",
        tabIndex=0,
        hidden=True,
        **{
            "aria-label": "Modules by time; up and down choose parent and child, left and right a neighbour",
            "aria-valuemin": "0",
            "aria-valuemax": "0",
            "aria-valuenow": "0",
        },
    )
    words = html.Div(
        [
            html.Div("Time by module", className="ns-track-name"),
            html.B("", id="icicle-title"),
            html.P("", id="icicle-note", className="ns-small"),
        ],
        className="icicle-gutter",
    )
    return html.Div(
        [words, html.Div(canvas, className="icicle-scroll")],
        id="icicle",
        className="ns-card ns-icicle",
        role="group",
        **{"aria-label": "Time by module"},
    )
