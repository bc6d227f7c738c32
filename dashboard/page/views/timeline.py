"""The anomaly timeline: one lane, shape and colour per severity, above the same step axis as every chart.

Pure: events in, figure out. Near events of a lane become one marker with a count, whose click still gives
an event. Called by the page's callbacks and by the export, on any thread.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from probe.wire import SEVERITIES, Event, Severity
from probe.wire.causes import is_of_probe
from probe.wire.event_texts import headline

from ...store.protocol import StepRange
from .event_facts import SEVERITY_ICONS
from .theme import ALL_STEPS, SEVERITY_SYMBOLS, Theme, colours, figure_layout
from .visible_text import visible_text

MARKER_PX: Final = 28
"""Events of a lane closer than this share a marker: its own width and that of a count of two digits."""
DIGIT_PX: Final = 8
"""Width of each further digit of a count."""
_HOVER_EVENTS: Final = 5
_HOVER_COLUMNS: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Events of one severity, by step, that are drawn as one marker."""

    events: tuple[Event, ...]

    @property
    def first(self) -> Event:
        """The event that a click on the marker opens."""
        return self.events[0]


def timeline_figure(
    events: Sequence[Event],
    *,
    theme: Theme,
    steps: StepRange = ALL_STEPS,
    selected: str | None = None,
    height: int | None = None,
    width: int = 1000,
) -> go.Figure:
    """Draw events as markers; every marker's `customdata` is the id of the event that a click opens.

    Args:
        events: In any order; those outside `steps` are left out.
        theme: Dark or light.
        steps: X-range; open ends follow the events.
        selected: Id of the open event; its marker has a ring.
        height: Pixels; None leaves it to the container.
        width: Pixels of the plot, for what is near.
    """
    about = (event for event in events if not is_of_probe(event))
    shown = sorted((event for event in about if _within(event, steps)), key=lambda event: event.step)
    near = MARKER_PX / width * _span(shown, steps)
    figure = go.Figure()
    for lane, severity in enumerate(SEVERITIES):
        clusters = _legible([event for event in shown if event.severity == severity], width=near)
        figure.add_trace(_lane(clusters, lane=lane, severity=severity, theme=theme, selected=selected))
    note = "" if shown else "no events in this range"
    layout = figure_layout(theme, title="Events", steps=steps, note=note, height=height)
    layout["hovermode"] = "closest"
    layout["yaxis"] = _lanes_axis(theme)
    figure.update_layout(layout)
    return figure


def cluster(events: Sequence[Event], *, width: float) -> list[Cluster]:
    """Group events, sorted by step, whose step is at most `width` steps after their group's first."""
    groups: list[list[Event]] = []
    for event in events:
        if groups and event.step - groups[-1][0].step <= width:
            groups[-1].append(event)
        else:
            groups.append([event])
    return [Cluster(events=tuple(group)) for group in groups]


def _legible(events: Sequence[Event], *, width: float) -> list[Cluster]:
    """Group events so that no count of three digits or more reaches into the next marker."""
    groups = cluster(events, width=width)
    digits = len(f"{max((len(group.events) for group in groups), default=0):,}")
    return groups if digits < 3 else cluster(events, width=width * (1 + DIGIT_PX / MARKER_PX * (digits - 2)))


def _lane(
    clusters: Sequence[Cluster], *, lane: int, severity: Severity, theme: Theme, selected: str | None
) -> go.Scatter:
    palette = colours(theme)
    chosen = [any(event.id == selected for event in group.events) for group in clusters]
    return go.Scatter(
        x=[group.first.step for group in clusters],
        y=[lane] * len(clusters),
        customdata=[group.first.id for group in clusters],
        hovertext=[_hover(group) for group in clusters],
        hovertemplate="%{hovertext}<extra></extra>",
        text=[f"{len(group.events):,}" if len(group.events) > 1 else "" for group in clusters],
        textposition="middle right",
        textfont={"color": palette.severity(severity), "size": 12},
        mode="markers+text",
        name=severity,
        cliponaxis=False,
        marker={
            "symbol": SEVERITY_SYMBOLS[severity],
            "size": [15 if ring else 12 for ring in chosen],
            "color": palette.severity(severity),
            "opacity": 1,
            "line": {"color": palette.text, "width": [2.5 if ring else 0 for ring in chosen]},
        },
    )


def _lanes_axis(theme: Theme) -> dict[str, Any]:
    return {
        "range": [len(SEVERITIES) - 0.5, -0.5],
        "tickvals": list(range(len(SEVERITIES))),
        "ticktext": [f"{SEVERITY_ICONS[severity]} {severity}" for severity in SEVERITIES],
        "gridcolor": colours(theme).grid,
        "zeroline": False,
        "fixedrange": True,
        "automargin": False,
        # Room for the half of a marker at the first step.
        "ticks": "outside",
        "ticklen": 7,
        "tickcolor": "rgba(0,0,0,0)",
    }


def _hover(group: Cluster) -> str:
    """First lines of the messages. Plotly reads hover text as markup, so run text is escaped."""
    lines = [
        "<br>".join(map(html.escape, textwrap.wrap(visible_text(headline(event)), _HOVER_COLUMNS)))
        for event in group.events[:_HOVER_EVENTS]
    ]
    if (rest := len(group.events) - _HOVER_EVENTS) > 0:
        lines.append(f"and {rest:,} more")
    return "<br>".join(lines)


def _within(event: Event, steps: StepRange) -> bool:
    after_first = steps.first is None or event.step >= steps.first
    return after_first and (steps.end is None or event.step < steps.end)


def _span(events: Sequence[Event], steps: StepRange) -> float:
    """Steps that the axis shows."""
    known = [event.step for event in events]
    first = steps.first if steps.first is not None else min(known, default=0)
    end = steps.end if steps.end is not None else max(known, default=first) + 1
    return float(max(end - first, 1))
