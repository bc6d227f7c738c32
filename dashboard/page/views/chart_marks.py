"""Series that are no lines but mark steps, in the band above a chart: where clipping fired, skipped updates.

Pure; used by the live feed and by the exports, as `charts.py` is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .chart_specs import MarkSpec
from .charts import LinePart
from .theme import Theme, colours
from .visible_text import plotly_text


def mark_part(data: pd.DataFrame, mark: MarkSpec) -> LinePart:
    """Return where a series marks steps: a bar over each stretch of them, or a point for each rise.

    Bars are pairs of ends with NaN between them. Of a point that pools several steps all are marked.

    Args:
        data: Rows of one name, as `Store.scalars` returns them.
        mark: What is a mark.
    """
    pooled = data["pooled"].to_numpy(dtype=np.float64)
    start = data["step"].to_numpy(dtype=np.float64)
    high = data["max"].to_numpy(dtype=np.float64)
    if mark.is_count:
        low = data["min"].to_numpy(dtype=np.float64)
        before = np.r_[low[:1], high[:-1]]
        at = (start + (pooled - 1.0) / 2.0)[high > np.fmin(before, low)]
        return LinePart(x=at, y=np.full(len(at), 0.5))
    fired = high > 0
    left, right = start[fired] - 0.5, start[fired] + pooled[fired] - 0.5
    joins = left[1:] <= right[:-1]
    left, right = left[np.r_[True, ~joins][: len(left)]], right[np.r_[~joins, True][: len(right)]]
    x = np.stack([left, right, np.full(len(left), np.nan)], axis=1).reshape(-1)
    return LinePart(x=x, y=np.where(np.isnan(x), np.nan, 0.5))


def mark_trace(mark: MarkSpec, *, theme: Theme) -> dict[str, Any]:
    """Return the Plotly trace of marks without its data."""
    colour = colours(theme).series[1]
    trace = {"type": "scatter", "name": mark.label, "yaxis": "y2", "cliponaxis": False}
    if mark.is_count:
        hover = f"{plotly_text(mark.label)}<extra></extra>"
        marker = {"symbol": "triangle-down", "size": 8, "color": colour}
        return trace | {"mode": "markers", "marker": marker, "hovertemplate": hover}
    return trace | {"mode": "lines", "line": {"color": colour, "width": 3}, "hoverinfo": "skip"}


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def mark_note(data: pd.DataFrame, mark: MarkSpec) -> str:
    """Say how often: the share of the steps of a flag, the newest value of a count; empty without rows."""
    if data.empty:
        return ""
    if mark.is_count:
        return f"{mark.label}: {int(np.nan_to_num(data['max'].iloc[-1])):,}"
    share = float((data["mean"] * data["pooled"]).sum() / data["pooled"].sum())
    few = "< 1 %" if 0 < share < 0.01 else f"{share * 100:.0f} %"
    return f"{mark.label} in {few} of the steps" if share > 0 else f"never {mark.label}"
