"""The tensors that a script follows with `probe.track_tensor`: a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.tracked_tensors import TensorRow, TrackedBody

from ...store.protocol import StoredDocument
from .quantities import bytes_text, duration_text

_HEADS: Final = ("Tensor", "Type, shape", "Size", "Lives for")


def tracked_table(documents: Sequence[StoredDocument]) -> list[Component]:
    """Return a sentence and the table of the newest start; nothing where no tensor is followed.

    Args:
        documents: of kind `tracked_tensors`, by time.
    """
    if not documents:
        return []
    newest = documents[-1]
    try:
        body = read_body(newest.document, TrackedBody)
    except WireError as error:
        return [html.P(f"The tracked tensors cannot be read: {error}", className="ns-small")]
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th(head, scope="col") for head in _HEADS])),
            html.Tbody([_row(row, newest.document.time) for row in body.tensors]),
        ],
        className="ns-memory-table ns-tracked",
    )
    scroll = {"tabIndex": 0, "role": "group", "aria-label": "Tracked tensors"}
    return [
        html.P(_sentence(body), className="ns-small", title=f"As of {moment_text(newest.document.time)}"),
        html.Div(table, className="ns-memory", **scroll),
    ]


def _sentence(body: TrackedBody) -> str:
    lives = f"{body.alive:,} of {body.tracked:,} live, {bytes_text(body.alive_bytes)}"
    more = body.tracked - len(body.tensors)
    return f"{lives}; {more:,} more are not listed." if more else f"{lives}."


def _row(row: TensorRow, now: float) -> Component:
    shape = "\u00d7".join(map(str, row.shape)) or "scalar"
    held = duration_text(max(0.0, (now if row.freed is None else row.freed) - row.since))
    hover = f"Tracked since {moment_text(row.since)}"
    if row.freed is not None:
        hover += f", freed {moment_text(row.freed)}"
    return html.Tr(
        [
            html.Th(row.name or "without a name", scope="row", title=row.name),
            html.Td([f"{row.dtype} {shape} ", html.Span(row.device, className="ns-small")]),
            html.Td(bytes_text(row.bytes)),
            html.Td(held if row.freed is None else f"freed after {held}", title=hover),
        ],
        className="" if row.freed is None else "ns-freed",
    )


def moment_text(time: float) -> str:
    """UNIX seconds as a date and a time, in UTC."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time:.0f} s"
