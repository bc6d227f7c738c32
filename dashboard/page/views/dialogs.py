"""What floats over the page, closed: palette, table of values, toast. `assets/ns_82` to `ns_84` fill them in.

Built once per server.
"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component


def palette() -> Component:
    """Return the dialog of Ctrl-K: a place for its field, and the list of what the letters stand for."""
    return html.Dialog(
        [
            html.Div(id="palette-head"),
            html.Div(id="palette-count", className="ns-small ns-palette-count", role="status"),
            html.Ul(
                id="palette-list", className="ns-palette-list", role="listbox", **{"aria-label": "Found"}
            ),
        ],
        id="palette",
        className="ns-keys ns-palette",
        **{"aria-label": "Palette"},
    )


def value_table() -> Component:
    """Return the dialog of values at one step: of the lines, and of the heatmap's rows."""
    moves = [
        html.Button("\u2039 Step before", id="values-before", className="ns-button", type="button"),
        html.Button("Step after \u203a", id="values-after", className="ns-button", type="button"),
        html.Button("Close", id="values-close", className="ns-button ns-close", type="button"),
    ]
    columns = html.Thead(html.Tr([html.Th("Series or row", scope="col"), html.Th("Value", scope="col")]))
    rows_title = html.Tbody(
        html.Tr(html.Th("", id="values-rows-title", colSpan=2, scope="rowgroup", className="ns-values-title"))
    )
    table = html.Table(
        [columns, html.Tbody(id="values-lines"), rows_title, html.Tbody(id="values-rows")],
        className="ns-values-table",
    )
    return html.Dialog(
        [
            html.H2("", id="values-step"),
            html.Div(moves, className="ns-values-moves"),
            html.Div("", id="values-said", className="ns-hidden", role="status"),
            html.Div(
                table,
                className="ns-values-scroll",
                tabIndex="0",
                role="group",
                **{"aria-label": "Values at this step"},
            ),
        ],
        id="values",
        className="ns-keys ns-values",
        **{"aria-labelledby": "values-step"},
    )


def views_dialog() -> Component:
    """Return the dialog of saved views: a name for this one, and the list of the others."""
    buttons = [
        html.Button("Save this view", id="views-save", className="ns-button", type="button"),
        html.Button("Close", id="views-close", className="ns-button ns-close", type="button"),
    ]
    return html.Dialog(
        [
            html.H2("Saved views"),
            html.Div(id="views-place"),
            html.Div("", id="views-said", className="ns-note-said", role="status"),
            html.Ul(id="views-list", className="ns-note-list", **{"aria-label": "Saved views"}),
            html.Div(buttons, className="ns-keys-foot"),
        ],
        id="views-dialog",
        className="ns-keys ns-views-dialog",
        **{"aria-label": "Saved views"},
    )


def editor_dialog() -> Component:
    """Return the dialog in which the editor is chosen that opens source lines."""
    close = html.Button("Close", id="editor-close", className="ns-button", type="button")
    return html.Dialog(
        [
            html.H2("Editor that opens source lines"),
            html.Div(id="editor-choices", role="radiogroup", **{"aria-label": "Editor"}),
            html.Div("", id="editor-said", className="ns-note-said", role="status"),
            html.P(
                "A link stands beside a line where its path is absolute: the training's files have to be on "
                "this machine.",
                className="ns-small",
            ),
            html.Div(close, className="ns-keys-foot"),
        ],
        id="editor-dialog",
        className="ns-keys ns-views-dialog",
        **{"aria-label": "Editor that opens source lines"},
    )


def toast() -> Component:
    """Return the note of a new critical event: a button that opens it, and one that closes the note."""
    text = [
        html.Span("\u25c6 ", className="ns-toast-icon", **{"aria-hidden": "true"}),
        html.Span("", id="toast-text"),
        html.Span("", id="toast-more", className="ns-small"),
    ]
    close = html.Button(
        "\u00d7", id="toast-close", className="ns-button", type="button", **{"aria-label": "Close the note"}
    )
    return html.Section(
        [html.Button(text, id="toast-open", className="ns-toast-open", type="button"), close],
        id="toast",
        className="ns-toast",
        hidden=True,
        **{"aria-label": "New critical event"},
    )
