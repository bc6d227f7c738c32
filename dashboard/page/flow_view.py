"""Gradient flow in the view Layers: depth against value at one step, each layer with a bar of its past.

Built once per server; filled in by `assets/ns_59_flow_view.js`.
"""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

_LEGEND: Final = (
    ("now", "this step"),
    ("out", "outside of its bar, far out with a line to it"),
    ("bar", ""),
    ("zero", "zero"),
    ("bad", "NaN; Inf is an empty square"),
)


def flow_switch() -> Component:
    """Return the two buttons that choose the heatmap or the flow."""
    buttons = [
        html.Button(
            label,
            className="ns-layers-scale",
            title=title,
            **{"data-flow": value, "aria-pressed": str(value == "0").lower()},
        )
        for value, label, title in (
            ("0", "Heatmap", "All steps: rows are layers, colour is the value"),
            ("1", "Gradient flow", "One step: depth from input to output, height is the value"),
        )
    ]
    return html.Div(buttons, id="flow-switch", role="group", **{"aria-label": "Heatmap or gradient flow"})


def flow_view() -> Component:
    """Return the picture, its slider of steps, and the place for outliers in words."""
    canvas = html.Canvas(
        id="flow-canvas",
        role="slider",
        tabIndex=0,
        **{
            "aria-label": "Values over depth; left and right choose a layer, up and down a step",
            "aria-valuemin": "0",
            "aria-valuemax": "0",
            "aria-valuenow": "0",
        },
    )
    side = html.Div(
        id="flow-side", role="group", tabIndex=0, **{"aria-label": "Layers outside of their bars"}
    )
    steps = html.Canvas(
        id="flow-steps",
        role="slider",
        tabIndex=0,
        title="Drag to choose the step",
        **{
            "aria-label": "Step shown",
            "aria-valuemin": "0",
            "aria-valuemax": "0",
            "aria-valuenow": "0",
        },
    )
    foot = html.Div(
        ["Step shown", html.P(["largest of all rows; ", html.Span("", id="flow-follows")])],
        className="flow-gutter flow-foot",
    )
    return html.Div([_gutter(), canvas, side, foot, steps], id="flow", className="ns-flow-view")


def _gutter() -> Component:
    legend = [
        html.Li(
            [
                html.I(className=f"flow-mark-{mark}", **{"aria-hidden": "true"}),
                html.Span(text, **({"id": "flow-bar-words"} if mark == "bar" else {})),
            ]
        )
        for mark, text in _LEGEND
    ]
    return html.Div(
        [
            html.Span("", id="flow-statistic"),
            html.B("", id="flow-step"),
            html.P("", id="flow-facts"),
            html.Ul(legend, className="flow-legend"),
        ],
        className="flow-gutter",
    )
