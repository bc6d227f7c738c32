"""Around the histograms of one row: what it is, what narrower formats would lose, and the counts as a table.

Pure: data in, Dash components out. All text comes from the training and is passed as text children.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dash import html
from dash.development.base_component import Component

from probe.wire import Layout

from ...store.protocol import MagnitudeHistogram
from . import magnitude_facts as facts
from .quantities import share_text


def row_head(subject: str, layout: Layout | None, histograms: Sequence[MagnitudeHistogram]) -> Component:
    """Name the row and say what it is; where nothing was measured, say that."""
    description = _describe(subject, layout, histograms)
    nothing = ""
    if not histograms:
        nothing = (
            "Nothing of it was counted in these steps." if description else "The model has no such name."
        )
    return html.Header(
        [
            html.H2(subject or "(root)", className="event-headline"),
            html.P(" \u00b7 ".join(description), className="event-message"),
            *([html.P(nothing, className="event-empty")] if nothing else []),
        ]
    )


def _describe(subject: str, layout: Layout | None, histograms: Sequence[MagnitudeHistogram]) -> list[str]:
    if layout is None:
        return []
    for parameter in layout.parameters:
        if parameter.name == subject:
            shape = " \u00d7 ".join(map(str, parameter.shape)) or "scalar"
            return ["parameter", parameter.dtype, shape]
    named = [(info.name, info.type) for info in layout.modules]
    named += [(info.name, info.type) for info in layout.layers]
    types = [type_ for name, type_ in named if name == subject]
    tensors = max((each.tensors for each in histograms if each.name != "activation"), default=0)
    together = [f"{tensors} parameters, counted together"] if tensors > 1 else []
    return [f"module {types[0]}", *together] if types else []


def row_tables(histograms: Sequence[MagnitudeHistogram]) -> list[Component]:
    """Return head-room and counts of each histogram."""
    if not histograms:
        return []
    return [
        html.Section(
            [html.H3("What a cast would lose"), *map(_formats, histograms), _explanation()],
            className="event-section",
        ),
        html.Section(
            [html.H3("Counts"), *map(_counts, histograms)],
            className="event-section",
        ),
    ]


def _formats(histogram: MagnitudeHistogram) -> Component:
    heads = ("Format", "Becomes 0", "Fewer bits", "Overflows", "Room")
    rows = [
        html.Tr(
            [
                html.Th(row.format.name.replace("fp8_", "fp8 "), scope="row"),
                html.Td(row.underflow),
                html.Td(row.subnormal),
                html.Td(row.overflow, className="magnitude-bad" if row.is_bad else ""),
                html.Td(row.room),
            ]
        )
        for row in facts.format_facts(histogram)
    ]
    title = facts.TITLES[histogram.name]
    head = html.Thead(html.Tr([html.Th(each, scope="col") for each in heads]))
    table = html.Table([head, html.Tbody(rows)], className="event-evidence magnitude-table")
    return html.Div([html.H4(title), table], role="group", **{"aria-label": title})


def _explanation() -> Component:
    return html.P(
        "Shares of all elements. Room: by how much everything may grow, at least, before the first "
        "element overflows.",
        className="magnitude-note",
    )


def _counts(histogram: MagnitudeHistogram) -> Component:
    total = facts.elements(histogram)
    rows = [
        html.Tr(
            [
                html.Th(facts.bin_text(number), scope="row"),
                html.Td(f"{int(histogram.counts[number]):,}"),
                html.Td(share_text(int(histogram.counts[number]) / total)),
            ]
        )
        for number in np.flatnonzero(histogram.counts).tolist()
    ]
    head = html.Thead(html.Tr([html.Th(each, scope="col") for each in ("Magnitude", "Elements", "Share")]))
    return html.Details(
        [
            html.Summary(f"{facts.TITLES[histogram.name]}, step {histogram.step:,}: {total:,} elements"),
            html.Table([head, html.Tbody(rows)], className="event-evidence magnitude-counts"),
        ]
    )
