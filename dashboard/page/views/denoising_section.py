"""The samplings of a diffusion model: a table of the latents after each denoising step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire.denoising import DenoisingBody, DenoisingRow
from probe.wire.documents import read_body
from probe.wire.event_texts import kind_label

from ...store.protocol import StoredDocument
from .tiles import significant

_HEADER: Final = (
    *("Step", "Timestep", "Deviation", "Expected", "Ratio", "Mean", "Smallest", "Largest"),
    *("NaN", "Inf", "Found"),
)
MOST_SAMPLINGS: Final = 10
MOST_ROWS: Final = 50


def denoising_section(documents: Sequence[StoredDocument]) -> Component:
    """Return the newest samplings, the newest of all open."""
    newest = sorted(documents, key=lambda found: found.document.time, reverse=True)[:MOST_SAMPLINGS]
    return html.Div([_sampling(found, is_open=at == 0) for at, found in enumerate(newest)])


def _sampling(found: StoredDocument, *, is_open: bool) -> Component:
    try:
        body = read_body(found.document, DenoisingBody)
    except WireError as error:
        text = f"Sampling {found.document.key} cannot be read: {error}"
        return html.P(text, className="ns-small")
    number = found.document.key.lstrip("0") or "0"
    with_whom = f", {body.scheduler}" if body.scheduler else ""
    title = f"Sampling {number}: {len(body.steps):,} steps of {body.pipeline}{with_whom}"
    sentences = [html.P(f"\N{BLACK UP-POINTING TRIANGLE} {text}") for text in body.found]
    shown = shown_rows(body.steps)
    left_out = len(body.steps) - len(shown)
    note = (
        [html.P(f"{left_out:,} steps between these are not shown.", className="ns-small")] if left_out else []
    )
    return html.Details(
        [html.Summary(title), *sentences, _table(shown), *note], open=is_open, className="ns-profile"
    )


def shown_rows(rows: Sequence[DenoisingRow]) -> list[DenoisingRow]:
    """At most `MOST_ROWS` of them, evenly spread, with first, last, and those where a finding begins."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    last = len(rows) - 1
    kept = {round(at * last / (MOST_ROWS - 1)) for at in range(MOST_ROWS)}
    begins = {at for at, row in enumerate(rows) if row.found and (at == 0 or not rows[at - 1].found)}
    chosen = [*sorted(begins)[: MOST_ROWS - 2], 0, last]
    spare = [at for at in sorted(kept) if at not in chosen]
    return [rows[at] for at in sorted({*chosen, *spare[: MOST_ROWS - len(set(chosen))]})]


def _table(rows: Sequence[DenoisingRow]) -> Component:
    head = html.Tr([html.Th(title, scope="col", className="ns-number") for title in _HEADER])
    table = html.Table(
        [html.Thead(head), html.Tbody([_row(row) for row in rows])], className="ns-profile-table"
    )
    return html.Div(table, className="ns-profile-scroll")


def _row(row: DenoisingRow) -> Component:
    ratio = row.std / row.expected_std if row.std is not None and row.expected_std else None
    cells = [
        "" if row.timestep is None else f"{row.timestep:g}",
        _number(row.std),
        _number(row.expected_std),
        _number(ratio),
        *map(_number, (row.mean, row.min, row.max)),
        f"{row.nan:,}" if row.nan else "",
        f"{row.inf:,}" if row.inf else "",
        f"\N{BLACK UP-POINTING TRIANGLE} {kind_label(row.found.removeprefix('diffusion_'))}"
        if row.found
        else "",
    ]
    return html.Tr(
        [html.Th(f"{row.step:,}", scope="row"), *(html.Td(text, className="ns-number") for text in cells)]
    )


def _number(value: float | None) -> str:
    return "" if value is None else significant(value, digits=3)
