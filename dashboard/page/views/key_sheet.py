"""The sheet of keys, which `?` opens.

Built once per server; shown and closed by `assets/ns_80_keys.js`, which has what each key does.
"""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from ... import ids

KEYS: Final = (
    ("Space", "pause the charts, or follow the newest step again"),
    ("0", "the whole range again, live"),
    ("n", "next event"),
    ("p", "previous event"),
    ("w", "zoom in, around the crosshair"),
    ("s", "zoom out"),
    ("a", "earlier steps"),
    ("d", "later steps"),
    ("e", "smoothing of the lines: off, 0.6, 0.9"),
    ("l", "log scales"),
    ("c", "scales without outliers"),
    ("/", "filter the layers"),
    ("Escape", "close the panel"),
    ("?", "this list"),
    ("t", "values at a step as a table; the arrows move the step"),
    ("m", "note at the step of the crosshair, or at the newest"),
    ("f", "full screen, or back; with a tensor open, its panel over the whole page"),
)
CHORDS: Final = (
    ("Ctrl K", "palette: run, view, event, layer or action by a few letters"),
    ("Shift Enter", "in Layers: pin the row at the top, or take it back"),
)
"""Of several keys; `assets/ns_82_palette.js` and `ns_55_layers.js` have what they do."""


def key_sheet() -> Component:
    """Return the dialog, closed."""
    rows = [html.Tr([html.Th(html.Kbd(key), scope="row"), html.Td(what)]) for key, what in (*KEYS, *CHORDS)]
    switch = html.Button(
        ["Keys of one letter: ", html.Span("on", id="key-switch-state")],
        id="key-switch",
        className="ns-button",
        type="button",
        role="switch",
        **{"aria-checked": "true"},
    )
    close = html.Button("Close", id=ids.KEY_SHEET_CLOSE, className="ns-button", type="button")
    return html.Dialog(
        [html.H2("Keys"), html.Table(html.Tbody(rows)), html.Div([switch, close], className="ns-keys-foot")],
        id=ids.KEY_SHEET,
        className="ns-keys",
        **{"aria-label": "Keys"},
    )
