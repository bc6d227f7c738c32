"""Histograms of magnitudes over a ruler of the narrower number formats, as one Plotly figure. Pure.

Every bin has the same width, because the formats' limits fall on bin edges: one power of two where trainings
live, from 2 to the -25 to 2 to the 16, and several beyond. Heights are shares on a log scale, so that a
single element that would overflow can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from probe.wire.magnitude_bins import BIN_EDGES, FORMATS, INF_BIN, NAN_BIN, ZERO_BIN, FloatFormat

from ...store.protocol import MagnitudeHistogram
from .magnitude_facts import TITLES, bin_text, edge_text, elements, special_texts
from .quantities import share_text
from .theme import FONT, Colours, Theme, colours

PLOT_PX: Final = 92
HEADING_PX: Final = 42
RULER_PX: Final = 62
AXIS_PX: Final = 36
_LEFT: Final = 56
_RIGHT: Final = 10
_PLACES: Final = {ZERO_BIN: -5.0, INF_BIN: INF_BIN + 4.0, NAN_BIN: INF_BIN + 11.0}
"""Special bins stand apart from the scale."""
_RANGE: Final = [-8.0, INF_BIN + 14.0]
_TICKS: Final = (-64, -16, -8, 0, 8, 16)
"""Exponents that get a label."""


def place(number: int) -> float:
    """Return where a bin stands on the x-axis."""
    return _PLACES.get(number, float(number))


def edge_place(edge: float) -> float:
    """Return where an edge of `BIN_EDGES` lies on the x-axis."""
    return BIN_EDGES.index(edge) + 0.5


def magnitude_figure(histograms: Sequence[MagnitudeHistogram], *, theme: Theme) -> go.Figure:
    """Draw histograms one below the other over one axis, and the formats' ranges below them.

    Args:
        histograms: At least one, from top to bottom.
        theme: Dark or light.
    """
    palette = colours(theme)
    height = len(histograms) * (HEADING_PX + PLOT_PX) + RULER_PX + AXIS_PX
    figure = go.Figure()
    layout = _layout(palette, height)
    inner = height - AXIS_PX
    for index, histogram in enumerate(histograms):
        top = inner - index * (HEADING_PX + PLOT_PX) - HEADING_PX
        domain = [(top - PLOT_PX) / inner, top / inner]
        axis = f"y{index + 2}"
        for trace in _bars(histogram, axis=axis, palette=palette):
            figure.add_trace(trace)
        layout["shapes"] += _limits(domain, palette)
        layout[f"yaxis{index + 2}"] = _share_axis(histogram, domain=domain, palette=palette)
        layout["annotations"] += _heading(histogram, y=domain[1], palette=palette)
    layout["yaxis"] = _ruler_axis([0.0, (RULER_PX - 12) / inner], palette)
    for number, chosen in enumerate(FORMATS.values()):
        colour = palette.series[number]
        for trace in _ruler_bars(chosen, number=number, colour=colour):
            figure.add_trace(trace)
    return figure.update_layout(layout)


def _layout(palette: Colours, height: int) -> dict[str, Any]:
    special = {"zero": ZERO_BIN, "Inf": INF_BIN, "NaN": NAN_BIN}
    return {
        "height": height,
        "margin": {"l": _LEFT, "r": _RIGHT, "t": 0, "b": AXIS_PX, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 11, "color": palette.muted},
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "overlay",
        "bargap": 0.08,
        "dragmode": False,
        "hoverlabel": {
            "bgcolor": palette.surface,
            "bordercolor": palette.border,
            "font": {"color": palette.text, "family": FONT, "size": 12},
        },
        "xaxis": {
            "range": _RANGE,
            "fixedrange": True,
            "anchor": "y",
            "tickvals": [edge_place(2.0**each) for each in _TICKS]
            + [place(each) for each in special.values()],
            "ticktext": [str(each).replace("-", "\u2212") for each in _TICKS] + list(special),
            "tickfont": {"size": 10},
            "tickangle": 0,
            "gridcolor": palette.grid,
            "zeroline": False,
            "title": {"text": "magnitude as a power of two", "font": {"size": 11}, "standoff": 2},
        },
        "annotations": [],
        "shapes": [],
    }


def _bars(histogram: MagnitudeHistogram, *, axis: str, palette: Colours) -> list[go.Bar]:
    """One bar for each bin that counted anything; zeros, Inf and NaN have traces and looks of their own."""
    filled = np.flatnonzero(histogram.counts).tolist()
    ordinary = [number for number in filled if number not in _PLACES]
    traces = [_trace(histogram, ordinary, axis=axis, width=0.92, colour=palette.series[0], shape="")]
    looks = {ZERO_BIN: (palette.muted, ""), INF_BIN: (palette.inf, "+"), NAN_BIN: (palette.nan, "/")}
    for number, (colour, shape) in looks.items():
        if number in filled:
            traces.append(_trace(histogram, [number], axis=axis, width=3.0, colour=colour, shape=shape))
    return traces


def _trace(
    histogram: MagnitudeHistogram, bins: list[int], *, axis: str, width: float, colour: str, shape: str
) -> go.Bar:
    shares = {number: int(histogram.counts[number]) / elements(histogram) for number in bins}
    return go.Bar(
        x=[place(number) for number in bins],
        y=list(shares.values()),
        yaxis=axis,
        name=histogram.name,
        width=width,
        customdata=[
            [bin_text(number), int(histogram.counts[number]), share_text(share)]
            for number, share in shares.items()
        ],
        marker={
            "color": colour,
            "line": {"width": 0},
            "pattern": {"shape": shape, "fgcolor": "#ffffff", "fillmode": "overlay", "size": 5},
        },
        hovertemplate="%{customdata[0]}<br>%{customdata[1]:,d} elements, %{customdata[2]}<extra></extra>",
    )


def _share_axis(histogram: MagnitudeHistogram, *, domain: list[float], palette: Colours) -> dict[str, Any]:
    """A log axis down to half of one element, with two to four labels in percent."""
    smallest = math.floor(math.log10(0.5 / max(1, elements(histogram))))
    stride = max(1, math.ceil(-smallest / 3))
    ticks = list(range(0, smallest - 1, -stride))
    return {
        "type": "log",
        "domain": domain,
        "anchor": "x",
        "range": [smallest, 0.15],
        "tickvals": [10.0**tick for tick in ticks],
        "ticktext": [f"{10.0 ** (tick + 2):g} %" for tick in ticks],
        "tickfont": {"size": 10},
        "gridcolor": palette.grid,
        "fixedrange": True,
        "zeroline": False,
    }


def _heading(histogram: MagnitudeHistogram, *, y: float, palette: Colours) -> list[dict[str, Any]]:
    """Name and step, and below them how many elements there are; from the figure's left end."""
    common = {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": y,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": -_LEFT,
        "showarrow": False,
    }
    title = f"<b>{TITLES[histogram.name]}</b>, step {histogram.step:,}"
    facts = [f"{elements(histogram):,} elements", *special_texts(histogram)]
    return [
        common | {"yshift": 17, "text": title, "font": {"size": 12, "color": palette.text}, "name": "title"},
        common | {"yshift": 3, "text": " \u00b7 ".join(facts), "name": "facts"},
    ]


def _ruler_axis(domain: list[float], palette: Colours) -> dict[str, Any]:
    names = [chosen.name.replace("fp8_", "fp8 ") for chosen in FORMATS.values()]
    return {
        "domain": domain,
        "range": [len(names) - 0.5, -0.5],
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "tickfont": {"size": 10, "color": palette.text},
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def _ruler_bars(chosen: FloatFormat, *, number: int, colour: str) -> list[go.Bar]:
    """Where a format keeps all its bits, and, hatched, where it is subnormal."""
    low, normal, high = map(edge_place, (chosen.underflow, chosen.smallest_normal, chosen.overflow))
    name = chosen.name.replace("fp8_", "fp8 ")
    below, above = edge_text(chosen.smallest_normal), edge_text(chosen.overflow)
    parts = (
        (low, normal, "/", f"{name}, fewer bits: {edge_text(chosen.underflow)} to {below}"),
        (normal, high, "", f"{name}, all bits: {below} to {above}"),
    )
    return [
        go.Bar(
            orientation="h",
            x=[end - start],
            base=[start],
            y=[number],
            width=[0.62],
            marker={
                "color": colour,
                "line": {"width": 0},
                "pattern": {"shape": shape, "solidity": 0.4, "size": 4},
            },
            hovertemplate=f"{text}<extra></extra>",
            name=f"{chosen.name} {'subnormal' if shape else 'normal'}",
        )
        for start, end, shape, text in parts
    ]


def _limits(domain: list[float], palette: Colours) -> list[dict[str, Any]]:
    """Lines through one histogram at the ends of all formats."""
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": edge_place(edge),
            "x1": edge_place(edge),
            "y0": domain[0],
            "y1": domain[1],
            "layer": "below",
            "line": {"color": palette.series[number], "width": 1, "dash": "dot"},
        }
        for number, chosen in enumerate(FORMATS.values())
        for edge in (chosen.underflow, chosen.overflow)
    ]
