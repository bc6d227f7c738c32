"""Per-layer heatmap: the whole picture as `go.Heatmap` for exports, and bare axes for the page's canvas.

Pure. Colour is log10 of the value in cividis; NaN, Inf and "not measured" have colours of their own and,
for NaN and Inf, a mark besides. Values are the maximum of the steps in a column, never interpolated.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from ...store.protocol import Heatmap, StepRange
from .heatmap_statistics import STATISTICS, Statistic
from .theme import ALL_STEPS, Theme, colours, figure_layout
from .visible_text import plotly_text

MEASURED: Final = 1
NAN: Final = 2
INF: Final = 4
MAX_TICK_LABELS: Final = 30


CIVIDIS: Final = (
    "#00224e",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#fee838",
)
"""Ten equally spaced colours of matplotlib's cividis (Nunez, Anderton, Renslow 2018)."""


def heatmap_axes(
    *, theme: Theme, rows: int = 0, steps: StepRange = ALL_STEPS, note: str = "", title: str | None = None
) -> dict[str, Any]:
    """Return the layout over which the page paints its canvas: same margins, first row on top."""
    heading = f"{STATISTICS[0].title} ({STATISTICS[0].scale})" if title is None else title
    layout = figure_layout(theme, title=heading, steps=steps, note=note)
    layout["yaxis"] = {
        "range": [rows - 0.5, -0.5],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "tickvals": [],
        "automargin": False,
    }
    layout["xaxis"] |= {"showgrid": False}
    layout["hovermode"] = False
    return layout


def heatmap_axes_figure(*, theme: Theme, rows: int = 0, steps: StepRange = ALL_STEPS) -> go.Figure:
    """Return axes alone: one invisible point makes Plotly draw and map them."""
    figure = go.Figure({"type": "scatter", "x": [0], "y": [0], "mode": "markers", "opacity": 0})
    figure.update_layout(heatmap_axes(theme=theme, rows=rows, steps=steps))
    return figure


def pooling_note(steps_per_column: int, *, every: int = 1, came_pooled: bool = False) -> str:
    """Say how many steps stand in one column, and which are measured; empty when each column is one step.

    Args:
        steps_per_column: From the heatmap.
        every: From `widened`.
        came_pooled: From the heatmap.
    """
    pooled = f"max of {steps_per_column:,} steps a column" if steps_per_column > 1 else ""
    pooled += ": sent so while nobody watched this rank" if came_pooled else ""
    return f"1 step in {every:,} measured, {pooled}" if every > 1 else pooled


MAX_CELLS: Final = 1_000_000
"""Largest picture for a page or a file."""
_LEAST_GAPS: Final = 3
_LEAST_SHARE: Final = 0.25
"""A distance between measured columns is a period if it occurs so often, over such a share of them all."""


def most_columns(wanted: int, *, rows: int) -> int:
    """Return how many columns a picture may have."""
    return max(16, min(wanted, MAX_CELLS // max(1, rows)))


def sampling_period(measured: npt.NDArray[np.intp]) -> tuple[int, float]:
    """Return the largest period, in columns, at which a good part of a picture was sampled; 1 without one.

    Lost steps and pauses are no period: their lengths do not recur.

    Args:
        measured: Indices of the columns with a value, ascending.

    Returns:
        The distance that no two neighbouring samples exceed, and their mean distance: in a pooled picture a
        period is now one column more, now one less.
    """
    gaps = np.sort(np.diff(measured))
    if not len(gaps) or gaps[-1] == 1:
        return 1, 1.0
    covered = np.r_[0, np.cumsum(gaps)]
    for gap in np.unique(gaps[gaps > 1])[::-1].tolist():
        low, high = np.searchsorted(gaps, max(2, gap - 1)), np.searchsorted(gaps, gap, side="right")
        share = (covered[high] - covered[low]) / covered[-1]
        if high - low >= _LEAST_GAPS and share >= _LEAST_SHARE:
            return gap, float(gaps[low:high].mean())
    return 1, 1.0


def widened(heatmap: Heatmap) -> tuple[Heatmap, int]:
    """Make columns so wide that each holds a measured step, where only one in several steps is measured.

    Columns that are empty for another reason (lost steps, a level that was off) stay empty.

    Returns:
        The picture, and one in how many steps was measured; 1 where none was widened.
    """
    longest, mean = sampling_period(np.flatnonzero((heatmap.flags > 0).any(axis=0)))
    if longest <= 1:
        return heatmap, 1
    factor = 1 << (longest - 1).bit_length()
    width = heatmap.steps_per_column * factor
    group = heatmap.steps // width
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    with np.errstate(invalid="ignore"):
        values = np.fmax.reduceat(heatmap.values, starts, axis=1)
    wide = dataclasses.replace(
        heatmap,
        steps=group[starts] * width,
        steps_per_column=width,
        values=values,
        flags=np.bitwise_or.reduceat(heatmap.flags, starts, axis=1),
    )
    return wide, round(mean * heatmap.steps_per_column)


LOG10_BELOW_ONE: Final = -1.0
"""Where the colours of counts begin, so that 1 does not look like 0."""


def log_values(heatmap: Heatmap, *, is_count: bool = False) -> npt.NDArray[np.float64]:
    """Return (rows, columns) log10 of the finite, positive values; NaN elsewhere. Zero becomes the smallest.

    An exact zero is a value (a dead layer), so it takes the darkest colour rather than none; of counts it
    becomes less than any.
    """
    values = heatmap.values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: npt.NDArray[np.float64] = np.log10(values)
    finite = logs[np.isfinite(logs)]
    logs[values == 0] = LOG10_BELOW_ONE if is_count else finite.min() if finite.size else 0.0
    return logs


def heatmap_figure(
    heatmap: Heatmap | None,
    *,
    theme: Theme,
    steps: StepRange = ALL_STEPS,
    height: int | None = None,
    statistic: Statistic = STATISTICS[0],
    every: int = 1,
) -> go.Figure:
    """Draw the heatmap with Plotly alone, for files that must open without our scripts.

    Args:
        heatmap: As returned by `Store.heatmap`; None gives empty axes.
        theme: Dark or light.
        steps: X-range; open ends follow the data.
        height: Pixels; None leaves it to the container.
        statistic: What it shows.
        every: From `widened`.
    """
    palette = colours(theme)
    if heatmap is None or not heatmap.rows or not len(heatmap.steps):
        figure = heatmap_axes_figure(theme=theme, steps=steps)
        return figure.update_layout(height=height)
    x = heatmap.steps.astype(np.float64) + (heatmap.steps_per_column - 1) / 2.0
    y = np.arange(len(heatmap.rows))
    figure = go.Figure()
    figure.add_trace(_value_trace(heatmap, log_values(heatmap, is_count=statistic.is_count), x=x, y=y))
    for flag, name, colour, symbol in (
        (INF, "Inf", palette.inf, "cross-thin"),
        (NAN, "NaN", palette.nan, "x-thin"),
    ):
        for trace in _flag_traces(heatmap, flag=flag, name=name, colour=colour, symbol=symbol, x=x):
            figure.add_trace(trace)
    layout = heatmap_axes(
        theme=theme,
        rows=len(heatmap.rows),
        steps=steps,
        note=pooling_note(heatmap.steps_per_column, every=every, came_pooled=heatmap.came_pooled),
        title=f"{statistic.title} ({statistic.scale})",
    )
    layout |= {"hovermode": "closest", "height": height}
    layout["yaxis"] |= _row_ticks(heatmap.rows)
    layout["plot_bgcolor"] = palette.unmeasured
    figure.update_layout(layout)
    return figure


def _value_trace(
    heatmap: Heatmap, logs: npt.NDArray[np.float64], *, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> go.Heatmap:
    """Finite values, coloured by log10 and hovered as they are."""
    scale = [[i / (len(CIVIDIS) - 1), colour] for i, colour in enumerate(CIVIDIS)]
    names = np.broadcast_to(
        np.array([row_label(name) for name in heatmap.rows], dtype=object)[:, None], heatmap.values.shape
    )
    return go.Heatmap(
        x=x,
        y=y,
        z=logs,
        text=names,
        customdata=heatmap.values,
        colorscale=scale,
        hoverongaps=False,
        hovertemplate=f"%{{text}}<br>{_span(heatmap)}<br>%{{customdata:.4~g}}<extra></extra>",
        colorbar={"thickness": 8, "len": 1.0, "outlinewidth": 0, "x": 1.01, "xpad": 0, "nticks": 5},
    )


def _flag_traces(
    heatmap: Heatmap, *, flag: int, name: str, colour: str, symbol: str, x: npt.NDArray[Any]
) -> list[Any]:
    """Cells with NaN (or Inf) in a plain colour, and a mark on each while there are few enough to see."""
    hit = (heatmap.flags & flag) != 0
    if not hit.any():
        return []
    hover = f"row %{{y}}<br>{_span(heatmap)}<br>{name}<extra></extra>"
    fill = go.Heatmap(
        x=x,
        y=np.arange(len(heatmap.rows)),
        z=np.where(hit, 1.0, np.nan),
        colorscale=[[0, colour], [1, colour]],
        showscale=False,
        hoverongaps=False,
        hovertemplate=hover,
    )
    rows, columns = np.nonzero(hit)
    keep = slice(None, None, max(1, len(rows) // 2000))
    marks = go.Scatter(
        x=x[columns[keep]],
        y=rows[keep],
        mode="markers",
        name=name,
        marker={"symbol": symbol, "size": 6, "line": {"width": 1.2, "color": "#ffffff"}},
        text=[row_label(heatmap.rows[row]) for row in rows[keep]],
        hovertemplate=f"%{{text}}<br>step %{{x}}<br>{name}<extra></extra>",
    )
    return [fill, marks]


def _span(heatmap: Heatmap) -> str:
    """Hover text for the steps of a column."""
    count = heatmap.steps_per_column
    return "step %{x}" if count == 1 else f"{count:,} steps around %{{x}} (max)"


def row_label(name: str) -> str:
    """A row's name for Plotly, which reads labels and hover texts as markup."""
    return plotly_text(name) or "(root)"


def _row_ticks(rows: tuple[str, ...]) -> dict[str, Any]:
    """At most `MAX_TICK_LABELS` evenly spaced names, the end of each when it is long."""
    stride = max(1, -(-len(rows) // MAX_TICK_LABELS))
    chosen = range(0, len(rows), stride)
    text = [rows[i] if len(rows[i]) <= 22 else "\u2026" + rows[i][-21:] for i in chosen]
    return {"tickvals": list(chosen), "ticktext": [row_label(name) for name in text]}
