"""The page's header: one row with run, rank, views, state and menu, and the verdict below it.

Built once per server; filled in by `assets/ns_60_status.js` and `assets/ns_61_verdict.js`.
"""

from __future__ import annotations

from typing import Final

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from .. import ids
from ..callers import VIEW_ONLY
from .run_picker import run_picker
from .tabs import tab_bar, tab_picker
from .views.source_buttons import source_buttons

_EXPORTS: Final = (
    ("export-html", "HTML (opens offline)"),
    ("export-png", "PNG (as on screen)"),
    ("export-json", "JSON"),
    ("export-csv", "CSV"),
    ("export-parquet", "Parquet"),
    ("export-track", "One track\u2026"),
)
_THEMES: Final = (("theme-dark", "Dark"), ("theme-light", "Light"), ("theme-system", "System"))


def header() -> Component:
    """Return the row."""
    return html.Header(
        [
            html.Div(
                [
                    html.Span(className="ns-logo", **{"aria-hidden": "true"}),
                    html.Span("nanscope", className="ns-brand-name"),
                ],
                className="ns-brand",
            ),
            run_picker(),
            _rank_select(),
            tab_bar(),
            tab_picker(),
            html.Span(className="ns-spacer"),
            html.Span(
                ["view", html.Span(" only")],
                className="ns-view-only",
                title=f"{VIEW_ONLY[0].upper()}{VIEW_ONLY[1:]}.",
            ),
            _state_button(),
            _lines(),
            _menu(),
        ],
        className="ns-header",
    )


def verdict_line() -> Component:
    """Return the line under the header; on a broken run the largest sentence of the page."""
    return html.Div(
        [
            html.Span(id="verdict-icon", className="ns-verdict-icon", **{"aria-hidden": "true"}),
            html.Button(
                "", id=ids.VERDICT_TEXT, className="ns-verdict-text", disabled=True, title="Show the event"
            ),
            html.Button(
                [html.Span("", id="verdict-more"), " ", html.Kbd("n")],
                id=ids.VERDICT_MORE,
                className="ns-verdict-more",
                title="Go through the events (n)",
                hidden=True,
            ),
            source_buttons(None, id_="verdict-source"),
            html.Span(className="ns-spacer"),
            _progress(),
            html.Span("", id="verdict-facts", className="ns-verdict-facts"),
        ],
        id=ids.VERDICT,
        className="ns-verdict",
        hidden=True,
        **{"data-severity": "none"},
    )


def _progress() -> Component:
    """Hidden until a run tells how far it is."""
    bar = html.Progress(id="progress-bar", max=1, value="0", **{"aria-label": "Done"})
    return html.Div(
        [html.Span(id="progress-text"), bar],
        id="progress",
        className="ns-progress",
        hidden=True,
        title="As the training reports its length; the time left assumes the pace of recent steps",
    )


def _rank_select() -> Component:
    return dmc.Select(
        id=ids.RANK_SELECT,
        data=[],
        placeholder="rank",
        allowDeselect=False,
        size="xs",
        className="ns-rank",
        withScrollArea=False,
        comboboxProps={"width": 130, "position": "bottom-start"},
        **{"aria-label": "Rank"},
    )


def _state_button() -> Component:
    """How the page stands to the run, in one button: live, held still, over, or not reached."""
    return html.Button(
        [
            html.Span(className="ns-icon", **{"aria-hidden": "true"}),
            html.Span("connecting", id="live-text"),
        ],
        id=ids.LIVE_BUTTON,
        className="ns-button ns-state",
        **{"aria-pressed": "true", "data-state": "connecting"},
    )


def _lines() -> Component:
    """How lines are drawn: smoothed with the raw line faint, on log scales, without their outliers."""
    return html.Details(
        [
            html.Summary("Lines", className="ns-button"),
            html.Div(
                [
                    html.Div(["Smoothing ", html.Kbd("e"), " ", html.Span("off", id="lines-smoothing-text")]),
                    html.Div(id="lines-smoothing"),
                    html.Button(
                        ["Log scale ", html.Kbd("l")],
                        id="lines-log",
                        className="ns-button",
                        **{"aria-pressed": "false"},
                    ),
                    html.Button(
                        ["Clip outliers ", html.Kbd("c")],
                        id="lines-clip",
                        className="ns-button",
                        title="Scale to the 1st to 99th percentile of what is on screen",
                        **{"aria-pressed": "false"},
                    ),
                ],
                className="ns-popover",
            ),
        ],
        id="lines",
        className="ns-lines",
    )


def _menu() -> Component:
    """Export, link, theme and keys in one menu; `assets/ns_81_menu.js` opens and closes it."""
    button = {
        "aria-label": "Menu",
        "aria-haspopup": "menu",
        "aria-expanded": "false",
        "aria-controls": "menu",
    }
    rest = [
        _menu_item("Copy link to this view", "copy-link"),
        _menu_item("Save this view", "save-view"),
        _menu_item(["Keys ", html.Kbd("?")], "open-keys"),
    ]
    settings = [
        _menu_item("Notify of critical events", "notify", role="menuitemcheckbox"),
        _menu_item(["Editor: ", html.Span("off", id="editor-name")], "editor"),
        _menu_item("Log out", "log-out"),
    ]
    entries = [
        _menu_group(
            "Export what is on screen",
            [_menu_item(text, item) for item, text in _EXPORTS],
            note=html.Div("", id="export-covers", className="ns-menu-note"),
        ),
        html.Div(rest, role="group", className="ns-menu-group", **{"aria-label": "This view"}),
        html.Div(
            [
                html.Div("Saved views", className="ns-menu-title", **{"aria-hidden": "true"}),
                html.Div(id="menu-views", className="ns-menu-views"),
            ],
            role="group",
            className="ns-menu-group",
            hidden=True,
            **{"aria-label": "Saved views"},
        ),
        _menu_group("Settings", settings),
        _menu_group("Theme", [_menu_item(text, item, role="menuitemradio") for item, text in _THEMES]),
    ]
    return html.Div(
        [
            html.Button("\u22ef", id=ids.PAGE_MENU, className="ns-button ns-dots", **button),
            html.Div(
                entries, id=ids.MENU, className="ns-menu", role="menu", hidden=True, **{"aria-label": "Menu"}
            ),
        ],
        className="ns-menu-place",
    )


def _menu_group(title: str, items: list[Component], *, note: Component | None = None) -> Component:
    """A group with its heading; the note below that is filled in by a script, and describes the group."""
    heading = html.Div(title, className="ns-menu-title", **{"aria-hidden": "true"})
    attributes = {"aria-label": title} | ({} if note is None else {"aria-describedby": note.id})
    notes = [] if note is None else [note]
    return html.Div([heading, *notes, *items], role="group", className="ns-menu-group", **attributes)


def _menu_item(text: str | list[str | Component], id_: str, *, role: str = "menuitem") -> Component:
    return html.Button(text, id=id_, className="ns-menu-item", role=role, tabIndex="-1", n_clicks=0)
