"""The dialog that exports one track, closed; `assets/ns_85_export.js` fills it in. Built once per server."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

_FORMS: Final = (("html", "HTML"), ("json", "JSON"), ("csv", "CSV"), ("parquet", "Parquet"))


def export_dialog() -> Component:
    """Return the dialog: which track, which form."""
    track = html.Label(
        ["Track ", html.Select([], id="export-choice", className="ns-heading")], className="ns-export-track"
    )
    forms = [
        html.Button(label, className="ns-button", type="button", disabled=True, **{"data-form": form})
        for form, label in _FORMS
    ]
    close = html.Button("Close", id="export-close", className="ns-button ns-close", type="button")
    return html.Dialog(
        [
            html.H2("Export one track", id="export-title"),
            track,
            html.P("", id="export-track-covers", className="ns-small"),
            html.Div(
                [*forms, close],
                id="export-forms",
                role="group",
                className="ns-export-forms",
                **{"aria-labelledby": "export-title"},
            ),
            html.P("", id="export-said", className="ns-small", role="status"),
        ],
        id="export-dialog",
        className="ns-keys ns-export",
        **{"aria-labelledby": "export-title"},
    )
