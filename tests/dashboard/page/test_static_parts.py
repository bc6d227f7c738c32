"""What is sent as HTML: nothing that a callback names, and the elements that the components stood for."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from dashboard.page.layout import page_layout
from dashboard.page.static_parts import callback_ids, take_static

VOID = ("br", "hr", "img", "input", "wbr")
REACT_NAMES = {"class": "className", "for": "htmlFor", "tabindex": "tabIndex", "colspan": "colSpan"}
Node = tuple[str, dict[str, str], list[Any]]


class Elements(HTMLParser):
    """HTML as (tag, attributes, children)."""

    def __init__(self) -> None:
        super().__init__()
        self.root: Node = ("", {}, [])
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node: Node = (tag, {REACT_NAMES.get(name, name): value or "" for name, value in attrs}, [])
        self._open[-1][2].append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self._open[-1][2].append(data)


def parsed(text: str) -> dict[str, list[Any]]:
    """Number of each template, with its children."""
    parser = Elements()
    parser.feed(text)
    parser.close()
    return {attributes["data-part"]: children for _, attributes, children in parser.root[2]}


def children_of(component: Component) -> list[Any]:
    held = getattr(component, "children", None)
    return [] if held is None else list(held) if isinstance(held, list | tuple) else [held]


def expected(node: Any) -> Any:
    """The element that React makes of a component."""
    if not isinstance(node, Component):
        return str(node)
    props = {name: value for name, value in node.to_plotly_json()["props"].items() if value is not None}
    attributes = {
        name: "" if value is True else str(value)
        for name, value in props.items()
        if name not in ("children", "n_clicks") and value is not False
    }
    inside: list[Any] = []
    for child in map(expected, (each for each in children_of(node) if each is not None)):
        if isinstance(child, str) and inside and isinstance(inside[-1], str):
            inside[-1] += child
        elif child != "":
            inside.append(child)
    return (node._type.lower(), attributes, inside)


def layout() -> Component:
    return page_layout(page="http://127.0.0.1:8050/?a=1&b=<2>", ingest="tcp://127.0.0.1:5555")


def elements(component: Component) -> list[Component]:
    return [each for each in component._traverse() if isinstance(each, Component)]


def test_parts_are_the_elements_of_the_components() -> None:
    whole, emptied = layout(), layout()
    parts = parsed(take_static(emptied, {"live-button"}))
    originals = {repr(expected(each)) for each in elements(whole)}
    roots = [each for each in elements(emptied) if hasattr(each, "data-part")]
    assert {getattr(root, "data-part") for root in roots} == set(parts) and len(parts) > 10
    for root in roots:
        number = getattr(root, "data-part")
        delattr(root, "data-part")
        tag, attributes, inside = expected(root)
        assert inside == []
        assert repr((tag, attributes, parts[number])) in originals
    assert len(elements(emptied)) < len(elements(whole)) / 4


def test_no_part_has_what_a_callback_names() -> None:
    app = Dash("parts")
    app.callback(Output("out", "children"), Input("in", "data"), State("of", "value"))(lambda *_: "")
    app.callback(Output("one", "children"), Output("two", "hidden"), Input("in", "data"))(lambda *_: "")
    app.clientside_callback("window.f", Output("told", "data"), Input({"kind": "k", "at": 1}, "n_clicks"))
    dynamic = callback_ids(app.callback_map, ("set",))
    assert {"out", "in", "of", "one", "two", "told", "set"} <= dynamic
    names = ["out", "of", "one", "two", "set", "free"]
    kept = [html.Div(dcc.Store("in")), html.Div(html.P("text"), id={"kind": "k", "at": 2})]
    page = html.Div([*(html.Div(html.Div(html.P("text"), id=name)) for name in names), *kept])
    text = take_static(page, dynamic)
    assert text == '<template data-part="0"><div id="free"><p>text</p></div></template>'
    there = [getattr(each, "id", None) for each in elements(page)]
    missing = [name for name in [*names, "in", {"kind": "k", "at": 2}] if name not in there]
    assert missing == ["free"]


@pytest.mark.parametrize("text", ["<script>x</script>", "a & b", '"', "</template>", "<!--"])
def test_text_stays_text(text: str) -> None:
    page = html.Div(html.Div([html.P(text, title=text), text]))
    (inside,) = parsed(take_static(page, ())).values()
    assert inside == [("p", {"title": text}, [text]), text]


def test_unknown_property_is_refused() -> None:
    page = html.Div(html.Div(html.P("text", style={"color": "red"})))
    with pytest.raises(ValueError, match="P has style="):
        take_static(page, ())
