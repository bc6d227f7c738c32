"""The line charts of one client's message: header fields, and arrays through the client's encoder.

Called by `live_message` on the hub's reader threads. Everything here costs the pixels asked for, not the
steps stored.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pandas as pd

from ..page.views.chart_marks import mark_note, mark_part
from ..page.views.chart_specs import CHARTS, MAX_LOGGED, ChartSpec, logged_chart, logged_names
from ..page.views.charts import LinePart, line_parts, off_steps, pooling_note
from ..page.views.throughput import stored_names, with_derived, with_derived_names
from ..store.protocol import StepRange, Store
from .codec import DeltaEncoder, shift


def add_charts(
    encoder: DeltaEncoder,
    store: Store,
    run: str,
    rank: int,
    *,
    steps: StepRange,
    points: int,
    with_logged: bool = False,
) -> dict[str, Any]:
    """Add the arrays of all line charts.

    Args:
        encoder: The client's.
        store: What is read.
        run: The run in view.
        rank: Its rank in view.
        steps: Steps in view.
        points: Most points of a line.
        with_logged: The user's own series too.

    Returns:
        `charts`: for each chart its series in these steps, notes, and whether the run has any of it at all;
        `logged`: names of the user's own series, at most `MAX_LOGGED`, and how many there are.
    """
    known = store.scalar_names(run, rank)
    logged = logged_names(known)
    shown = [logged_chart(name) for name in logged[:MAX_LOGGED]] if with_logged else []
    specs = [*CHARTS, *shown]
    known = with_derived_names(known)
    names = stored_names(name for spec in specs for name in (*spec.lines(known), *spec.marks))
    data = with_derived(store.scalars(run, rank, names, steps, points))
    breaks = off_steps(store.events(run, rank), rank)
    by_name = {str(name): rows for name, rows in data.groupby("name", sort=False)}
    return {
        "charts": {spec.id: _add_chart(encoder, spec, known, by_name, breaks) for spec in specs},
        "logged": {"names": logged[:MAX_LOGGED], "count": len(logged)},
    }


def _add_chart(
    encoder: DeltaEncoder,
    spec: ChartSpec,
    known: list[str],
    by_name: dict[str, pd.DataFrame],
    breaks: list[int],
) -> dict[str, Any]:
    lines = spec.lines(known)
    series = [name for name in lines if name in by_name]
    for name in series:
        for part, trace in line_parts(by_name[name], unit=spec.unit, breaks=breaks).items():
            _add_part(encoder, f"{spec.id}/{name}/{part}", trace)
    marks = {name: mark for name, mark in spec.marks.items() if name in by_name}
    for name, mark in marks.items():
        _add_part(encoder, f"{spec.id}/{name}/mark", mark_part(by_name[name], mark))
    note = pooling_note(pd.concat([by_name[name] for name in series])) if series else ""
    fields: dict[str, Any] = {"series": series, "note": note, "present": bool(lines)}
    if marks:
        fields["marks"] = {name: mark_note(by_name[name], mark) for name, mark in marks.items()}
    return fields


def _add_part(encoder: DeltaEncoder, key: str, trace: LinePart) -> None:
    x: npt.NDArray[Any] = trace.x.astype("<f8")
    drop = shift(encoder.held(f"{key}/x"), x)
    encoder.add(f"{key}/x", x, drop=drop)
    encoder.add(f"{key}/y", trace.y.astype("<f4"), drop=drop)
