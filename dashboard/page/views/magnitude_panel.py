"""Around the histograms of one row: what it is, what narrower formats would lose, and the counts as a table.

Pure: data in, Dash components out. All text comes from the training and is passed as text children.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from typing import Final

import numpy as np
from dash import html
from dash.development.base_component import Component

from probe.wire import Layout, ParameterInfo

from ...store.protocol import MagnitudeHistogram
from . import magnitude_facts as facts
from .quantities import share_text


def row_head(
    subject: str,
    layout: Layout | None,
    histograms: Sequence[MagnitudeHistogram],
    *,
    has_histograms: bool = True,
    stage: str = "",
) -> Component:
    """Name the row and say what it is; where nothing was counted, say that.

    Args:
        subject: name of the row.
        layout: of the model.
        histograms: what was counted of it.
        has_histograms: whether the run has any; without, a sentence elsewhere says from which level on.
        stage: which gradients the statistics are of, see `Store.gradient_stage`.
    """
    description = _describe(subject, layout, histograms)
    said = []
    if not description:
        said.append("The model has no such name.")
    elif not histograms and has_histograms:
        said.append("No histogram of it was recorded in these steps.")
    own = _own_parameters(subject, layout)
    if own:
        said.append(_stage(stage))
    return html.Header(
        [
            html.H2(subject or "(root)", className="event-headline"),
            html.P(" \u00b7 ".join(description), className="event-message"),
            *(html.P(each, className="event-empty") for each in said),
            *([_parameter_table(own)] if own and own[0].name != subject else []),
        ]
    )


_STAGES: Final = {
    "micro": "of one micro-step",
    "local": "as backward leaves it",
    "reduced": "averaged over the ranks",
    "scaled": "with the GradScaler's scale",
    "unscaled": "the GradScaler's scale taken out",
    "clipped": "after clipping",
    "shard": "this rank's part",
}


def _stage(stage: str) -> str:
    """Say which gradient the numbers are of."""
    words = f"{stage} ({_STAGES[stage]})" if stage in _STAGES else ""
    when = "" if stage == "clipped" else "before clipping"
    said = ", ".join(filter(None, (words, when)))
    return f"Stage of the gradient: {said}. Its histogram is of it as it is at the update."


MOST_PARAMETERS: Final = 12
"""Of one layer that are listed; a layer rarely has more than four."""


def _own_parameters(subject: str, layout: Layout | None) -> list[ParameterInfo]:
    """Return the parameter of this name, or those that a layer of this name owns directly."""
    if layout is None:
        return []
    layers = {index for index, layer in enumerate(layout.layers) if layer.name == subject}
    named = [each for each in layout.parameters if each.name == subject]
    return named or [each for each in layout.parameters if each.layer in layers]


def _parameter_table(parameters: Sequence[ParameterInfo]) -> Component:
    """Dtype and shape of each parameter of a layer."""
    rows = [
        html.Tr([html.Th(each.name, scope="row"), html.Td(each.dtype), html.Td(_shape(each))])
        for each in parameters[:MOST_PARAMETERS]
    ]
    more = len(parameters) - MOST_PARAMETERS
    head = html.Thead(html.Tr([html.Th(each, scope="col") for each in ("Parameter", "Dtype", "Shape")]))
    table = html.Table([head, html.Tbody(rows)], className="event-evidence tensor-parameters")
    return html.Div([table, *([html.P(f"and {more:,} more", className="event-empty")] if more > 0 else [])])


def _shape(parameter: ParameterInfo) -> str:
    return " \u00d7 ".join(map(str, parameter.shape)) or "scalar"


def kinds_of(subject: str, layout: Layout | None) -> tuple[str, ...]:
    """Return what a name is of: `parameter`, `layer`, `module`; empty for none."""
    if layout is None:
        return ()
    named = {
        "parameter": [each.name for each in layout.parameters],
        "layer": [each.name for each in layout.layers],
        "module": [each.name for each in layout.modules],
    }
    return tuple(kind for kind, names in named.items() if subject in names)


def watch_condition(subject: str, kinds: Sequence[str]) -> str:
    """Return a watchpoint's condition that fits a name: its norm, or its output, beyond what is usual."""
    quantity = "activation_max" if tuple(kinds) == ("module",) else "grad_norm"
    # A pattern, in which brackets, stars and question marks of a name stand for themselves. A condition has
    # no character without a glyph: such a name is written with escapes.
    pattern = glob.escape(subject)
    literal = json.dumps(pattern, ensure_ascii=False) if pattern.isprintable() else repr(pattern)
    return f"{quantity}({literal}) > 8 * median"


def _describe(subject: str, layout: Layout | None, histograms: Sequence[MagnitudeHistogram]) -> list[str]:
    if layout is None:
        return []
    for parameter in layout.parameters:
        if parameter.name == subject:
            return ["parameter", parameter.dtype, _shape(parameter)]
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
