"""The view of all runs: a table that a script fills, and what differs between those that are ticked. Pure."""

from __future__ import annotations

from typing import Final

from dash import dcc, html
from dash.development.base_component import Component

from ... import ids

COLUMNS: Final = (
    ("Compare", "ns-runs-tick"),
    ("Run", ""),
    ("State", ""),
    ("Newest step", "ns-number"),
    ("Best loss", "ns-number"),
    ("Loss", "ns-runs-loss"),
    ("Faults", ""),
    ("Started", ""),
    ("Note", "ns-runs-note"),
    ("Delete", "ns-runs-delete"),
)
"""(title, class); `assets/ns_64_run_rows.js` makes the cells in this order."""
_UNTITLED: Final = ("Compare", "Delete")
"""Their cells say what they are."""
MOST_COMPARED: Final = 5
"""Also in `assets/ns_20_view.js`."""


def runs_section() -> list[Component]:
    """Return the view; its rows come from `assets/ns_65_runs.js`."""
    heads = [html.Span(title, className="ns-hidden") if title in _UNTITLED else title for title, _ in COLUMNS]
    columns = zip(heads, COLUMNS, strict=True)
    head = html.Tr([html.Th(title, scope="col", className=kind or None) for title, (_, kind) in columns])
    table = html.Table([html.Thead(head), html.Tbody(id="runs-body")], className="ns-runs-table")
    return [
        *(dcc.Store(id=each) for each in (ids.RUNS_SCOPE, ids.RUNS_ROWS, ids.RUNS_ACTION, ids.RUNS_SAID)),
        dcc.Store(id=ids.RUNS_COMPARED),
        dcc.Store(id=ids.RUNS_OVERLAY),
        html.Div(
            [
                html.Div(id="runs-search"),
                html.Span("", id="runs-count", className="ns-small", role="status"),
                html.Span(className="ns-spacer"),
                html.Span(
                    f"Tick up to {MOST_COMPARED} runs to compare them", id="runs-ticked", className="ns-small"
                ),
            ],
            className="ns-runs-tools",
        ),
        html.Div(
            table, className="ns-runs-scroll", tabIndex="0", role="region", **{"aria-label": "All runs"}
        ),
        html.Div(
            [
                html.Div(id="plot-runs", className="ns-plot"),
                html.Div(
                    [
                        html.Div("Loss", className="ns-track-name"),
                        html.Div(id="legend-runs", className="ns-track-legend"),
                    ],
                    className="ns-gutter",
                ),
            ],
            id="runs-chart",
            className="ns-card ns-runs-chart",
            hidden=True,
            role="img",
            **{"aria-label": "Losses of the ticked runs over steps"},
        ),
        html.Div(id=ids.RUNS_COMPARISON, className="ns-runs-comparison"),
    ]
