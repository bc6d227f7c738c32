"""The table of compared optimisation modes, with the recommendation. Documents in, component out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire.compared_modes import OptimizationBody, OptimizationRow
from probe.wire.documents import read_body

from ...store.protocol import StoredDocument
from .quantities import bytes_text, duration_text
from .tiles import significant

_HEADER: Final = (
    *("Mode", "Step", "First step", "Speed-up", "99 % interval", "Memory of a step", "Saved"),
    *("Output differs", "Loss differs", "Gradients differ", "Numbers"),
)
_VERDICTS: Final = {True: "within limits", False: "\N{BLACK UP-POINTING TRIANGLE} out of limits", None: ""}


def optimization_table(documents: Sequence[StoredDocument]) -> Component:
    """Draw the comparisons, the newest first."""
    newest = sorted(documents, key=lambda found: found.document.time, reverse=True)
    return html.Div([_comparison(found) for found in newest])


def _comparison(found: StoredDocument) -> Component:
    try:
        body = read_body(found.document, OptimizationBody)
    except WireError as error:
        return html.P(f"Comparison {found.document.key} cannot be read: {error}", className="ns-small")
    head = html.Tr([html.Th(title, scope="col") for title in _HEADER])
    rows = [_row(row, is_recommended=row.mode == body.recommended) for row in body.rows]
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="event-evidence")
    where = f"{body.model} on {body.device}, {body.pairs:,} pairs of steps for each mode"
    return html.Div(
        [
            html.P([html.Strong(f"Recommended: {body.recommended}. "), body.why]),
            html.Div(table, style={"overflowX": "auto"}),
            html.P(where, className="ns-small"),
        ]
    )


def _row(row: OptimizationRow, *, is_recommended: bool) -> Component:
    name = html.Th(f"{row.mode}, recommended" if is_recommended else row.mode, scope="row")
    if row.error is not None:
        return html.Tr([name, html.Td(f"does not work here: {row.error}", colSpan=len(_HEADER) - 1)])
    has_interval = row.speedup_low is not None and row.speedup_high is not None
    cells = [
        "" if row.step_s is None else duration_text(row.step_s),
        "" if row.first_step_s is None else duration_text(row.first_step_s),
        _factor(row.speedup),
        f"{_factor(row.speedup_low)} to {_factor(row.speedup_high)}" if has_interval else "",
        "" if row.peak_bytes is None else bytes_text(row.peak_bytes),
        _percent(row.memory_saved),
        _percent(row.output_difference),
        _percent(row.loss_difference),
        _percent(row.gradient_difference),
        _VERDICTS[row.is_within],
    ]
    return html.Tr([name, *(html.Td(text, title=row.note) for text in cells)])


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{significant(100 * fraction, digits=2)} %"
