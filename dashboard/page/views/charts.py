"""Line charts of scalar series over steps: how one is drawn. Which there are says `chart_specs.py`.

Pure: a frame of `Store.scalars` in, arrays or a figure out. `line_parts` is used by the live feed as well,
so that what streams to the page and what an export shows cannot differ. NaN and Inf are drawn as marks in
a band above the y-scale, and the x-axis runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from probe.wire import Event

from ...store.protocol import GapRange, StepRange
from .theme import ALL_STEPS, Theme, colours, figure_layout, value_axis
from .visible_text import plotly_text

BAND_DOMAIN: Final = (0.9, 1.0)
"""Share of the plot's height that is kept for marks of NaN and Inf."""
VALUE_DOMAIN: Final = (0.0, 0.86)
SCALES: Final = {"GiB": 2.0**-30, "MiB": 2.0**-20}
"""Units of series that are stored in bytes, and what these are multiplied by."""
LOG_RATIO: Final = 20.0
"""Below this ratio of largest to smallest value a log axis has no room for readable ticks."""
FEW_POINTS: Final = 3
"""A line of so few points gets markers: of one point it would be invisible."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePart:
    """One trace of a series: (points,) x in steps and y in the chart's unit."""

    x: Floats
    y: Floats


PARTS: Final = ("low", "high", "line", "nan", "inf")
"""Traces of a series, in drawing order: smallest and largest of the pooled steps, mean, marks."""


def off_steps(events: Iterable[Event], rank: int) -> list[int]:
    """Return the steps after which a rank recorded nothing, because its level was `off`."""
    changes = (event for event in events if event.kind == "level_changed" and event.rank == rank)
    ends = {step for event in changes if event.subject == "off" for step in (event.step, event.last_step)}
    return sorted(step for step in ends if step is not None)


def line_parts(
    data: pd.DataFrame, *, unit: str = "", breaks: Sequence[int] = (), restarts: Sequence[int] = ()
) -> dict[str, LinePart]:
    """Split one series into the traces of `PARTS`.

    A pooled point stands in the middle of its steps. `low` and `high` are empty while nothing is pooled.
    `nan` and `inf` have a mark (y = 0.5 of the band) wherever at least one step was not finite.

    Args:
        data: Rows of one name, as `Store.scalars` returns them.
        unit: those of `SCALES` divide; every other one leaves values as they are.
        breaks: Steps after which steps are missing; no line is drawn across.
        restarts: Steps at which values of another start begin; no line is drawn to them.
    """
    scale = SCALES.get(unit, 1.0)
    pooled = data["pooled"].to_numpy(dtype=np.float64)
    x = data["step"].to_numpy(dtype=np.float64) + (pooled - 1.0) / 2.0
    mean = data["mean"].to_numpy(dtype=np.float64) * scale
    holes = np.union1d(_holes(x, pooled, breaks), _seams(x, restarts))
    empty = LinePart(x=x[:0], y=x[:0])
    low = high = empty
    if len(pooled) and pooled.max() > 1:
        low = _broken(x, data["min"].to_numpy(dtype=np.float64) * scale, holes)
        high = _broken(x, data["max"].to_numpy(dtype=np.float64) * scale, holes)
    marks = {name: x[data[name].to_numpy(dtype=np.float64) > 0] for name in ("nan", "inf")}
    return {
        "low": low,
        "high": high,
        "line": _broken(x, mean, holes),
        **{name: LinePart(x=at, y=np.full(len(at), 0.5)) for name, at in marks.items()},
    }


def _holes(x: Floats, pooled: Floats, breaks: Sequence[int]) -> npt.NDArray[np.intp]:
    """Return the points before which the line breaks: the first one after each break, unless it touches."""
    after = np.unique(np.searchsorted(x, np.asarray(breaks, dtype=np.float64), side="right"))
    after = after[(after > 0) & (after < len(x))]
    return after[x[after] - x[after - 1] > (pooled[after] + pooled[after - 1]) / 2.0]


def _seams(x: Floats, restarts: Sequence[int]) -> npt.NDArray[np.intp]:
    """Return the first points of other starts, which have one before them."""
    at = np.unique(np.searchsorted(x, np.asarray(restarts, dtype=np.float64), side="left"))
    return at[(at > 0) & (at < len(x))]


def _broken(x: Floats, y: Floats, holes: npt.NDArray[np.intp]) -> LinePart:
    """Put a point without a value into every hole."""
    between = (x[holes] + x[holes - 1]) / 2.0
    return LinePart(x=np.insert(x, holes, between), y=np.insert(y, holes, np.nan))


def part_trace(part: str, *, label: str, colour: str, theme: Theme, unit: str = "") -> dict[str, Any]:
    """Return the Plotly trace of one part without its data."""
    palette = colours(theme)
    if part in ("nan", "inf"):
        symbol = "x" if part == "nan" else "triangle-up"
        name = "NaN" if part == "nan" else "Inf"
        return {
            "type": "scatter",
            "mode": "markers",
            "name": f"{plotly_text(label)} {name}",
            "yaxis": "y2",
            "cliponaxis": False,
            "marker": {"symbol": symbol, "size": 7, "color": palette.nan if part == "nan" else palette.inf},
            "hovertemplate": f"{plotly_text(label)} is {name}<extra></extra>",
        }
    line = {"color": colour, "width": 1.6 if part == "line" else 0, "simplify": True}
    trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": plotly_text(label), "line": line}
    if part == "line":
        trace["marker"] = {"size": 5, "color": colour}
        suffix = f" {unit}" if unit and unit != "L2" else ""
        return trace | {"hovertemplate": f"{plotly_text(label)} %{{y:.5~g}}{suffix}<extra></extra>"}
    trace |= {"hoverinfo": "skip"}
    return trace | ({"fill": "tonexty", "fillcolor": _faint(colour)} if part == "high" else {})


def chart_layout(
    *, title: str, unit: str, theme: Theme, steps: StepRange = ALL_STEPS, log: bool = False, note: str = ""
) -> dict[str, Any]:
    """Return the layout of a line chart: the y-scale below, the band for NaN and Inf above."""
    heading = plotly_text(f"{title} ({unit})" if unit else title)
    layout = figure_layout(theme, title=heading, steps=steps, note=plotly_text(note))
    layout["yaxis"] = value_axis(theme, log=log) | {"domain": list(VALUE_DOMAIN)}
    layout["yaxis2"] = {
        "domain": list(BAND_DOMAIN),
        "range": [0, 1],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "tickvals": [],
        "anchor": "x",
    }
    return layout


def gap_shapes(gaps: Sequence[GapRange], *, theme: Theme, first: float, last: float) -> list[dict[str, Any]]:
    """Return a grey band for every known hole; an open end reaches to the end of the data."""
    fill = colours(theme).gap
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": (first if gap.first_step is None else gap.first_step) - 0.5,
            "x1": (last if gap.last_step is None else gap.last_step) + 0.5,
            "y0": 0,
            "y1": 1,
            "fillcolor": fill,
            "line": {"width": 0},
            "layer": "below",
            "name": "gap",
        }
        for gap in gaps
    ]


def pooling_note(data: pd.DataFrame) -> str:
    """Say how many steps stand in one point; empty when every point is one step."""
    pooled = int(data["pooled"].max()) if len(data) else 1
    return f"mean of {pooled:,} steps" if pooled > 1 else ""


def series_figure(
    data: pd.DataFrame,
    *,
    title: str,
    unit: str,
    theme: Theme,
    steps: StepRange = ALL_STEPS,
    gaps: Sequence[GapRange] = (),
    breaks: Sequence[int] = (),
    restarts: Sequence[int] = (),
    names: Mapping[str, str] | None = None,
    log: bool = False,
    stacked: bool = False,
    remarks: Sequence[str] = (),
) -> go.Figure:
    """Draw scalar series over steps.

    Args:
        data: As returned by `Store.scalars`; several names are several lines.
        title: Heading, without the unit.
        unit: Shown after the title; "GiB" converts from bytes.
        theme: Dark or light.
        steps: X-range; open ends follow the data.
        gaps: Drawn as grey bands.
        breaks: Steps after which steps are missing, see `line_parts`.
        restarts: Steps at which values of another start begin, see there.
        names: Series name -> label, in drawing order; None takes the names of `data`.
        log: Logarithmic y-axis where `is_wide` says so.
        stacked: Areas, one upon the other, in the order of `names`.
        remarks: Small print before that of `pooling_note`.
    """
    present = list(dict.fromkeys(data["name"].tolist()))
    labels = {name: name for name in present} if names is None else names
    shown = data[data["name"].isin(list(labels))]
    figure = go.Figure()
    palette = colours(theme)
    for index, (name, label) in enumerate((n, labels[n]) for n in labels if n in present):
        own = palette.kinds if stacked else palette.series
        colour = own[index % len(own)]
        rows = data[data["name"] == name]
        for part, points in line_parts(rows, unit=unit, breaks=breaks, restarts=restarts).items():
            trace = part_trace(part, label=label, colour=colour, theme=theme, unit=unit)
            trace["showlegend"] = part == "line" and len(labels) > 1
            if part == "line" and len(points.x) <= FEW_POINTS:
                trace["mode"] = "lines+markers"
            if stacked and part in ("low", "high"):
                continue  # the range of a part says nothing of the sum
            if stacked and part == "line":
                trace |= {"stackgroup": "parts", "fillcolor": _faint(colour, 0.62)}
            figure.add_trace({**trace, "x": points.x, "y": points.y})
    note = ", ".join(filter(None, [*remarks, pooling_note(shown)]))
    is_log = log and is_wide(shown["mean"].to_numpy(dtype=np.float64))
    layout = chart_layout(title=title, unit=unit, theme=theme, steps=steps, log=is_log, note=note)
    layout["yaxis"] |= _scale(shown["mean"].to_numpy(dtype=np.float64), unit=unit, log=is_log)
    ends = (float(shown["step"].min()), float(shown["step"].max())) if len(shown) else (0.0, 0.0)
    layout["shapes"] = gap_shapes(gaps, theme=theme, first=ends[0], last=ends[1])
    figure.update_layout(layout)
    return figure


def is_wide(values: Floats) -> bool:
    """Whether the positive, finite values differ by more than `LOG_RATIO`."""
    positive = values[np.isfinite(values) & (values > 0)]
    return positive.size > 0 and float(positive.max()) > LOG_RATIO * float(positive.min())


def log_tick(values: Floats) -> int:
    """Return the decades between two ticks of a log axis: at most about four ticks, at powers of ten."""
    positive = values[np.isfinite(values) & (values > 0)]
    return max(1, round(float(np.log10(positive.max()) - np.log10(positive.min())) / 3))


def _scale(values: Floats, *, unit: str, log: bool) -> dict[str, Any]:
    """Ticks of a log axis; a constant stands in the middle of a scale that begins at 0."""
    if log:
        return {"dtick": log_tick(values)}
    finite = values[np.isfinite(values)] * SCALES.get(unit, 1.0)
    if finite.size and finite.min() == finite.max() > 0:
        return {"range": [0.0, 2.0 * float(finite.max())], "autorange": False}
    return {}


def _faint(colour: str, opacity: float = 0.22) -> str:
    """The same hex colour, partly transparent."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
