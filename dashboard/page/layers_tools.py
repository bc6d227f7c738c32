"""What the view Layers has beside the heatmap: filter, sort and scale above it, tree and values at its sides.

Built once per server; filled in by `assets/ns_55_layers.js`, which hides all of it in other views.
"""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from .flow_view import flow_switch, flow_view

SORTS: Final = (
    ("", "Model order"),
    ("value", "Value"),
    ("change", "Last change"),
    ("bad", "First NaN or Inf"),
)
SCALES: Final = (("", "Absolute"), ("row", "Per row"), ("past", "Own past"))


def filter_and_sort() -> list[Component]:
    """Return what stands left of the choice of a statistic."""
    box = html.Label(
        [
            html.Span("Filter of rows, a regular expression", className="ns-hidden"),
            html.Span(id="layers-filter-place"),
            html.Span("", id="layers-count", className="ns-small"),
        ],
        className="ns-layers-tool",
    )
    error = html.Span(
        "", id="layers-error", className="ns-layers-tool ns-layers-error", role="alert", hidden=True
    )
    select = html.Select(
        [html.Option(label, value=value) for value, label in SORTS],
        id="layers-sort",
        className="ns-heading",
        **{"aria-label": "Order of the rows"},
    )
    return [box, error, html.Span(["Sort ", select], className="ns-layers-tool ns-small")]


def scale_choice() -> Component:
    """Return what stands right of it: what the colours are relative to, and heatmap or gradient flow."""
    titles = {
        "": "One scale for all rows",
        "row": "Each row between its own 1st and 99th percentile of the steps on screen",
        "past": "Each value over the median of its row's earlier steps on screen",
    }
    buttons = [
        html.Button(
            label,
            className="ns-layers-scale",
            title=titles[value],
            **{"data-scale": value, "aria-pressed": str(value == "").lower()},
        )
        for value, label in SCALES
    ]
    scales = html.Div(
        buttons,
        id="layers-scales",
        className="ns-layers-tool",
        role="group",
        **{"aria-label": "Scale of the colours"},
    )
    return html.Div([scales, flow_switch()], className="ns-layers-ends")


def layers_overlay() -> list[Component]:
    """Return heads, tree and values, which lie over the card at the left and right of the picture."""
    fold = html.Button("", id="layers-fold", className="ns-link", title="Fold or unfold all groups")
    tree = html.Div(
        [html.Div(id="layers-spacer"), html.Div(id="layers-lines")],
        id="layers-tree",
        role="tree",
        tabIndex=0,
        **{"aria-label": "Rows of the heatmap"},
    )
    return [
        html.Div(
            [html.Span(["Module ", fold]), html.Span("tensors")], id="layers-head", className="ns-small"
        ),
        tree,
        html.Div(id="layers-values-head", className="ns-small"),
        html.Div(id="layers-values", **{"aria-hidden": "true"}),
        html.Canvas(id="layers-sparks", **{"aria-hidden": "true"}),
        flow_view(),
    ]
