"""Text in what callbacks return: visible wherever people read it, and as it is in data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dash import Input, Output, html

from dashboard.page.visible_components import return_visible_text, visible

HOSTILE = "a\u202e\nb"
SHOWN = "a[U+202E][U+000A]b"


def test_visible_reaches_every_text_that_people_read() -> None:
    part = html.Div(
        [HOSTILE, html.B(HOSTILE, title=HOSTILE), html.Pre([html.Code(HOSTILE)]), 7, None],
        id="kept",
        **{"aria-label": HOSTILE, "data-text": HOSTILE},
    )
    shown = visible([part, HOSTILE])
    div = shown[0]
    assert div.children[0] == div.children[1].children == shown[1] == SHOWN
    assert div.children[1].title == "a[U+202E]\nb"
    assert div.children[2].children[0].children == "a[U+202E]\nb"
    assert getattr(div, "aria-label") == SHOWN
    assert getattr(div, "data-text") == HOSTILE
    assert div.children[3:] == [7, None]


def test_callbacks_return_visible_text_and_data_as_it_is() -> None:
    added: list[Any] = []
    app = SimpleNamespace(callback=lambda *_, **__: added.append)
    return_visible_text(app)
    outputs = Output("text", "children"), Output("data", "data")
    app.callback(*outputs, Input("asked", "data"))(lambda _: (html.P(HOSTILE), {"name": HOSTILE}))
    app.callback(Output("text", "children"), Input("asked", "data"))(lambda _: HOSTILE)
    app.callback(Output("names", "data"), Input("asked", "data"))(lambda _: HOSTILE)
    several, text, names = added
    paragraph, data = several("now")
    assert paragraph.children == text("now") == SHOWN
    assert data == {"name": HOSTILE} and names("now") == HOSTILE
