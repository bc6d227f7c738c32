"""Callbacks that only connect Dash components to the scripts: start, run, rank, range, theme, export.

All run in the browser, as named functions of `assets/ns_90_callbacks.js`: no inline script, no round trip.
"""

from __future__ import annotations

from typing import Final

from dash import ClientsideFunction, Dash, Input, Output

from ... import ids

BRIDGES: Final = (
    ("start", ids.TEMPLATES, "data"),
    ("takePickerRows", ids.PICKER_ROWS, "data"),
    ("chooseRank", ids.RANK_SELECT, "value"),
    ("takeRows", ids.EVENT_ROWS, "data"),
    ("takeRow", ids.ROW_HISTOGRAMS, "data"),
    ("takeRowTracks", ids.ROW_TRACKS, "data"),
    ("takeModuleTimes", ids.MODULE_TIMES, "data"),
    ("chooseRow", ids.ROW_SELECT, "value"),
    ("takeRuns", ids.RUNS_ROWS, "data"),
    ("runsSaid", ids.RUNS_SAID, "data"),
    ("drawOverlay", ids.RUNS_OVERLAY, "data"),
    ("exportHtml", "export-html", "n_clicks"),
    ("exportPng", "export-png", "n_clicks"),
    ("exportJson", "export-json", "n_clicks"),
    ("exportCsv", "export-csv", "n_clicks"),
    ("exportParquet", "export-parquet", "n_clicks"),
    ("exportTrack", "export-track", "n_clicks"),
    ("copyLink", "copy-link", "n_clicks"),
    ("openKeys", "open-keys", "n_clicks"),
    ("themeDark", "theme-dark", "n_clicks"),
    ("themeLight", "theme-light", "n_clicks"),
    ("themeSystem", "theme-system", "n_clicks"),
)
"""(function, component, property): a change of the property calls the function."""


def register_page(app: Dash) -> None:
    """Register the bridges between components and scripts. They return nothing to Dash."""
    for function, component, prop in BRIDGES:
        app.clientside_callback(
            ClientsideFunction(namespace="nanscope", function_name=function),
            Output(ids.BOOTED, "data", allow_duplicate=True),
            Input(component, prop),
            prevent_initial_call="initial_duplicate",
        )
