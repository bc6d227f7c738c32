"""The tables of an event's tensors and of the data that the script gave with it, as Dash components. Pure.

All text comes from the training process and is passed as text children. Called by the event panel.
"""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from probe.wire import Event

from .event_values import TENSOR_COLUMNS, data_facts, tensor_rows


def tensor_table(event: Event) -> list[Component]:
    """A row per tensor; nothing where none is described."""
    if not (rows := tensor_rows(event)):
        return []
    body = [html.Tr([html.Th(name, scope="row"), *map(html.Td, cells)]) for name, *cells in rows]
    return [_scrolling(_table(TENSOR_COLUMNS, body, "event-tensors"))]


def data_table(event: Event) -> list[Component]:
    """A row per value; nothing where the script gave none."""
    if not (rows := data_facts(event)):
        return []
    body = [
        html.Tr([html.Th(row.label, scope="row"), html.Td(row.value, title=row.detail or None)])
        for row in rows
    ]
    return [_scrolling(_table(("name", "value"), body, "event-data"))]


def _table(columns: Sequence[str], body: list[Component], name: str) -> Component:
    head = html.Thead(html.Tr([html.Th(column, scope="col") for column in columns]))
    return html.Table([head, html.Tbody(body)], className=f"event-evidence {name}")


def _scrolling(table: Component) -> Component:
    """A wide table scrolls by itself, by the keyboard too."""
    return html.Div(table, className="event-wide", tabIndex="0")
