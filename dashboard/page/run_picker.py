"""The run picker of the header: a button, the list that it opens, and what a row says of a run.

Built once per server; opened and filled in by `assets/ns_62_run_picker.js`, whose rows in view are asked for
on the server's callback threads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from .. import ids
from ..ingest.run_removal import run_state
from ..store.protocol import RunSummary, Store


def run_picker() -> Component:
    """Return the button, whose `value` is the id of the run that is shown, and the list, closed."""
    opens = {
        "aria-haspopup": "dialog",
        "aria-expanded": "false",
        "aria-controls": "run-picker",
        "aria-label": "Run",
        "data-state": "connecting",
    }
    button = html.Button(
        [
            html.Span(className="ns-icon", **{"aria-hidden": "true"}),
            html.Span("connecting", id="run-name", className="ns-run-name"),
            html.Span("", id="run-id", className="ns-small"),
        ],
        id=ids.RUN_SELECT,
        className="ns-button ns-state ns-caret ns-run-button",
        type="button",
        value="",
        **opens,
    )
    return html.Div(
        [
            dcc.Store(id=ids.PICKER_SCOPE),
            dcc.Store(id=ids.PICKER_ROWS),
            button,
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(id="run-picker-search"),
                            html.Span("", id="run-picker-count", className="ns-small", role="status"),
                        ],
                        className="ns-picker-head",
                    ),
                    html.Div(
                        html.Div(id="run-picker-rows", className="ns-picker-rows", role="rowgroup"),
                        id="run-picker-list",
                        className="ns-picker-list",
                        role="grid",
                        **{"aria-label": "Runs"},
                    ),
                    html.Div("", id="run-picker-name", className="ns-picker-name"),
                    html.Div(
                        [html.Kbd("Enter"), " show  ", html.Kbd("Shift Enter"), " tick to compare"],
                        className="ns-picker-keys",
                    ),
                ],
                id="run-picker",
                className="ns-picker",
                role="dialog",
                hidden=True,
                **{"aria-label": "Choose a run"},
            ),
        ],
        className="ns-run",
    )


def picker_rows(store: Store, wanted: Collection[str]) -> list[dict[str, Any]]:
    """Return what the picker says of some runs beside their names; those that are gone are left out."""
    return [_row(run) for run in store.runs() if run.run in wanted]


def _row(run: RunSummary) -> dict[str, Any]:
    return {
        "run": run.run,
        "state": run_state(run),
        "step": max((rank.last_step for rank in run.ranks if rank.last_step is not None), default=None),
        "written": max((rank.last_time or 0.0 for rank in run.ranks), default=0.0) or run.started,
        "critical": run.event_counts.get("critical", 0),
        "warnings": run.event_counts.get("warning", 0),
    }
