"""The page's profiles: findings, the dearest operations, modules, lines; the form that asks for one. Pure.

All text of a run is text here: names of operations, modules and files come from the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.profiles import MAX_STEPS, OpRow, PlaceRow, ProfileBody

from ... import ids
from ...store.protocol import StoredDocument
from .quantities import bytes_text, duration_text, percent_text

DEFAULT_STEPS: Final = 5
_ROWS: Final = 15
_TITLES: Final = {
    "input_wait": "Input pipeline",
    "idle_gpu": "Idle GPU",
    "host_sync": "Host-device synchronisation",
    "small_ops": "Many small operations",
    "copies": "Copies and conversions",
    "dominant_op": "One operation",
}


def profile_content(documents: Sequence[StoredDocument]) -> Component:
    """Return the inside of the section: the newest profile open, the others folded below it."""
    newest = sorted(documents, key=lambda found: found.document.time, reverse=True)
    return html.Div([_profile(found, is_open=at == 0) for at, found in enumerate(newest)])


def _profile(found: StoredDocument, *, is_open: bool) -> Component:
    try:
        body = read_body(found.document, ProfileBody)
    except WireError as error:
        text = f"Profile {found.document.key} cannot be read: {error}"
        return html.P(text, className="ns-small")
    return html.Details(
        [html.Summary(_title(body)), *_findings(body), _facts(found, body), *_tables(body)],
        open=is_open,
        className="ns-profile",
    )


def _title(body: ProfileBody) -> str:
    each = f"{duration_text(body.wall_s / max(body.steps, 1))} per step while profiled"
    if body.first_step is None:
        return f"A block of {body.steps:,} steps, {each}"
    if body.steps == 1:
        return f"Step {body.first_step:,}, {each}"
    return f"Steps {body.first_step:,} to {body.first_step + body.steps - 1:,}, {each}"


def _findings(body: ProfileBody) -> list[Component]:
    if not body.findings:
        return [html.P("Nothing unusual.", className="ns-small")]
    return [
        html.Div(
            [
                html.Strong(f"{_TITLES[one.kind]}: "),
                one.message,
                html.Ul([html.Li(advice) for advice in one.advice], className="ns-small"),
            ],
            className="ns-profile-finding",
        )
        for one in body.findings
    ]


def _facts(found: StoredDocument, body: ProfileBody) -> Component:
    parts = [f"Requested by {body.asked_by}", f"operations {duration_text(body.cpu_s)} of the CPU"]
    if body.has_cuda:
        parts.append(f"GPU busy {percent_text(body.cuda_s / body.wall_s if body.wall_s else 0.0)}")
    if body.input_wait_s:
        parts.append(f"in DataLoaders {duration_text(body.input_wait_s)}")
    if body.own_s:
        parts.append(f"the probe's own operations {duration_text(body.own_s)}")
    link: list[Component | str] = []
    if body.trace is not None:
        path = f"/api/v1/runs/{quote(found.run, safe='')}/profiles/{quote(found.document.key, safe='')}/trace"
        link = [
            " ",
            html.A("Download the trace", href=path, download="", className="ns-link"),
            f" ({bytes_text(body.trace_bytes)}, opens in ui.perfetto.dev)",
        ]
    notes = [html.P(note, className="ns-small") for note in body.notes]
    return html.Div([html.P([f"{'; '.join(parts)}.", *link], className="ns-small"), *notes])


def _tables(body: ProfileBody) -> list[Component]:
    tables = [_op_table(body.ops, has_cuda=body.has_cuda)] if body.ops else []
    for caption, rows in (("Module", body.modules), ("Line", body.lines)):
        if rows:
            tables.append(_place_table(caption, rows, has_cuda=body.has_cuda))
    return tables


def _op_table(rows: Sequence[OpRow], *, has_cuda: bool) -> Component:
    head = ["Operation", "Calls", "Self CPU", "CPU", *(["Self CUDA"] if has_cuda else []), "Memory"]
    cells = [
        [
            row.name,
            f"{row.calls:,}",
            duration_text(row.self_cpu_s),
            duration_text(row.cpu_s),
            *([duration_text(row.self_cuda_s)] if has_cuda else []),
            bytes_text(row.allocated_bytes),
            row.module if row.module != "" else "(model)",
            row.line,
        ]
        for row in rows[:_ROWS]
    ]
    return _table([*head, "Module", "Line"], cells, texts=2)


def _place_table(caption: str, rows: Sequence[PlaceRow], *, has_cuda: bool) -> Component:
    head = [caption, "Calls", "Self CPU", "of backward", *(["Self CUDA"] if has_cuda else []), "Memory"]
    cells = [
        [
            row.name or "(model)",
            f"{row.calls:,}",
            duration_text(row.self_cpu_s),
            duration_text(row.backward_cpu_s),
            *([duration_text(row.self_cuda_s)] if has_cuda else []),
            bytes_text(row.allocated_bytes),
        ]
        for row in rows[:_ROWS]
    ]
    return _table(head, cells, texts=0)


def _table(head: Sequence[str], rows: Sequence[Sequence[str | None]], *, texts: int) -> Component:
    """A table whose first column, and the last `texts` ones, are text."""
    last = len(head) - texts
    kinds = ["" if at == 0 or at >= last else "ns-number" for at in range(len(head))]
    header = html.Tr(
        [html.Th(text, scope="col", className=kind) for text, kind in zip(head, kinds, strict=True)]
    )
    body = [
        html.Tr([html.Td(text or "", className=kind) for text, kind in zip(row, kinds, strict=True)])
        for row in rows
    ]
    table = html.Table([html.Thead(header), html.Tbody(body)], className="ns-profile-table")
    return html.Div(table, className="ns-profile-scroll")


def profile_form() -> Component:
    """Return the form that has the next steps of a running training profiled."""
    return html.Details(
        [
            html.Summary("Profile the next steps"),
            html.Div(
                [
                    html.Div(
                        [
                            dmc.NumberInput(
                                id=ids.PROFILE_STEPS,
                                label="Steps",
                                value=DEFAULT_STEPS,
                                min=1,
                                max=MAX_STEPS,
                                allowDecimal=False,
                                size="xs",
                                error="",
                            ),
                            html.Button("Profile", id=ids.PROFILE_ASK, className="ns-button", n_clicks=0),
                        ],
                        className="ns-watchpoint-form",
                    ),
                    html.P(
                        "Steps take longer while being profiled; results stay the same.",
                        id=ids.PROFILE_SAID,
                        className="ns-small",
                        role="status",
                        **{"aria-live": "polite"},
                    ),
                ],
                className="ns-card ns-watchpoints",
            ),
        ],
        id="profile-form",
        open=True,
        className="ns-logged",
    )
