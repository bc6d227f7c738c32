"""Notes at steps: the list in the view of events, the small dialog that writes one, what was deleted. Pure.

Built once per server; filled in by `assets/ns_86_notes.js` and `ns_87_note_marks.js`.
"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component


def note_list() -> Component:
    """Return the list, empty and hidden until there is a note."""
    return html.Details(
        [
            html.Summary(["Notes ", html.Span("", id="notes-count", className="ns-small")]),
            html.Ul(id="notes-list", className="ns-note-list", **{"aria-label": "Notes"}),
        ],
        id="notes",
        className="ns-notes",
        open=True,
        hidden=True,
    )


def note_dialog() -> Component:
    """Return the dialog of the key `m`, closed."""
    return html.Dialog(
        [
            html.H2("", id="note-title"),
            html.Div(id="note-place"),
            html.Div("", id="note-said", className="ns-note-said", role="status"),
            html.Div(
                [
                    html.Button("Save", id="note-save", className="ns-button", type="button"),
                    html.Button("Cancel", id="note-cancel", className="ns-button", type="button"),
                    html.Button(
                        "Delete", id="note-delete", className="ns-button ns-close", type="button", hidden=True
                    ),
                ],
                className="ns-keys-foot",
            ),
        ],
        id="note-dialog",
        className="ns-keys ns-note-dialog",
        **{"aria-labelledby": "note-title"},
    )


def note_undo() -> Component:
    """Return the place of what was deleted and can be put back."""
    return html.Div(id="notes-undo", className="ns-runs-undo ns-notes-undo", role="status")
