"""The figures of an exported page as JSON, in one theme, with what changes when the other one is chosen.

Both themes in full would double the file: the data is the same, a patch holds the rest. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io

from ..page.views.breaks import break_shapes, steps_of
from ..page.views.chart_marks import mark_note, mark_part, mark_trace
from ..page.views.chart_specs import CHARTS, MAX_LOGGED, ChartSpec, logged_chart, logged_names
from ..page.views.charts import series_figure
from ..page.views.heatmap import heatmap_figure
from ..page.views.theme import Theme
from ..page.views.throughput import with_derived
from ..page.views.timeline import timeline_figure
from .snapshot import Snapshot

_ROW_HEIGHT = 14
_HEATMAP_HEIGHTS = (220, 1600)
_LEGEND = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1, "yanchor": "bottom"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFigure:
    """One chart of the exported page."""

    id: str
    label: str
    """For screen readers."""
    height: int
    """Pixels."""
    light: dict[str, Any]
    """The whole figure, in light colours."""
    dark_patch: dict[str, Any]
    """See `difference`."""


def page_figures(snapshot: Snapshot) -> list[PageFigure]:
    """Draw every chart that the snapshot has data for, top to bottom."""
    dark = {name: figure for name, _, _, figure in _draw(snapshot, "dark")}
    return [
        PageFigure(
            id=name, label=label, height=height, light=figure, dark_patch=difference(figure, dark[name])
        )
        for name, label, height, figure in _draw(snapshot, "light")
    ]


def _draw(snapshot: Snapshot, theme: Theme) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Yield (id, label, height, figure); all share the x-range that the snapshot covers."""
    steps = snapshot.covered
    series = with_derived(snapshot.series)
    known = [str(name) for name in series["name"].unique()]
    alone = None if snapshot.track is None else snapshot.track.id
    for spec in CHARTS:
        if spec.lines(known) and alone in (None, spec.id):
            yield spec.id, spec.title, 200, _plain(_chart(snapshot, series, spec, theme))
    yield "timeline", "Events", 130, _plain(timeline_figure(snapshot.events, theme=theme, steps=steps))
    if snapshot.heatmap is not None:
        low, high = _HEATMAP_HEIGHTS
        height = min(max(_ROW_HEIGHT * len(snapshot.heatmap.rows) + 60, low), high)
        figure = heatmap_figure(
            snapshot.heatmap,
            theme=theme,
            steps=steps,
            statistic=snapshot.statistic,
            every=snapshot.measured_every,
        )
        figure.for_each_trace(_halve, selector={"type": "heatmap"})
        yield "heatmap", snapshot.statistic.title, height, _plain(figure)
    for number, name in enumerate(logged_names(known)[:MAX_LOGGED]):
        spec = logged_chart(name)
        yield f"logged-{number}", spec.title, 200, _plain(_chart(snapshot, series, spec, theme))


def _chart(snapshot: Snapshot, series: pd.DataFrame, spec: ChartSpec, theme: Theme) -> go.Figure:
    """Draw one line chart, and its marks."""
    by_name = {str(name): rows for name, rows in series.groupby("name")}
    lines = spec.lines(by_name)
    marks = {name: mark for name, mark in spec.marks.items() if name in by_name}
    figure = series_figure(
        series[series["name"].isin(list(lines))],
        title=spec.title,
        unit=spec.unit,
        theme=theme,
        steps=snapshot.covered,
        gaps=snapshot.gaps,
        breaks=steps_of(snapshot.breaks, "off"),
        restarts=steps_of(snapshot.breaks, "restart"),
        names=lines,
        log=spec.log,
        stacked=spec.stacked,
        remarks=[spec.remark, *(mark_note(by_name[name], mark) for name, mark in marks.items())],
    )
    for name, mark in marks.items():
        points = mark_part(by_name[name], mark)
        figure.add_trace({**mark_trace(mark, theme=theme), "x": points.x, "y": points.y, "showlegend": True})
    shapes = [*(figure.layout.shapes or ()), *break_shapes(snapshot.breaks, theme=theme)]
    return figure.update_layout(shapes=shapes, showlegend=len(lines) + len(marks) > 1, legend=_LEGEND)


def difference(base: Any, other: Any) -> dict[str, Any]:
    """Return what turns `base` into `other`; `applyPatch` in `page.js` is the inverse.

    ``{"change": {key: difference, ...}}`` for the differing keys of two objects, or the differing indexes of
    two lists of equal length; ``{"set": other}`` for everything else. A key that goes is set to null, which
    Plotly reads as absent.
    """
    if isinstance(base, dict) and isinstance(other, dict):
        keys = [*base, *(key for key in other if key not in base)]
        pairs = [(key, base.get(key), other.get(key)) for key in keys]
    elif isinstance(base, list) and isinstance(other, list) and len(base) == len(other):
        pairs = [(str(i), old, new) for i, (old, new) in enumerate(zip(base, other, strict=True))]
    else:
        return {"set": other}
    return {"change": {key: difference(old, new) for key, old, new in pairs if old != new}}


def _halve(trace: go.Heatmap) -> None:
    """Colours need no double precision; most of a large file is this."""
    trace.z = np.asarray(trace.z, dtype=np.float32)


def _plain(figure: go.Figure) -> dict[str, Any]:
    """The figure as Plotly's own JSON: numeric arrays as base64, non-finite numbers as null or in base64."""
    plain: dict[str, Any] = json.loads(plotly.io.to_json(figure, validate=False))
    for trace in plain["data"]:
        _compact_text(trace)
    return plain


def _compact_text(trace: dict[str, Any]) -> None:
    """A heatmap's hover names repeat along each row: keep one per row, `page.js` repeats them."""
    text = trace.get("text")
    if trace.get("type") == "heatmap" and isinstance(text, list) and all(len(set(row)) == 1 for row in text):
        trace["text"] = {"rows": [row[0] for row in text], "columns": len(text[0]) if text else 0}
