"""Pictures of a report as SVG text, drawn from numbers in plain Python. Pure; every text is escaped.

Colours are CSS variables of the page (`report_html.py`), but for the heatmap's scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

from . import tables
from .report_curves import CurvePoint

WIDTH: Final = 720
"""Pixels of every picture."""
_LEFT: Final = 78
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 24
_CHART: Final = 170
_LOG_FROM: Final = 100.0
"""Highest over lowest value from which an axis is logarithmic."""
_MOST_ROWS: Final = 80
_MOST_COLUMNS: Final = 64
_MOST_MARKS: Final = 500
_SCALE: Final = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""From low to high, as in viridis."""
_SEVERITIES: Final = ("critical", "warning", "info")


def line_chart(points: Sequence[CurvePoint], *, text: Callable[[float | None], str] = tables.number) -> str:
    """Draw the means as a line, lows and highs as a band, and a red tick where a value was NaN or Inf.

    Args:
        points: of one series, in order of steps.
        text: writes a value for reading.
    """
    finite = [(one.low, one.high) for one in points if one.low is not None and one.high is not None]
    if not points:
        return ""
    low, high = min((l for l, _ in finite), default=0.0), max((h for _, h in finite), default=1.0)  # noqa: E741
    y, ticks = _value_axis(low, high)
    x = _step_axis(points[0].first_step, points[-1].last_step)
    drawn = [one for one in points if one.mean is not None]
    upper = [f"{x(_middle(one)):.1f},{y(one.high):.1f}" for one in drawn]
    lower = [f"{x(_middle(one)):.1f},{y(one.low):.1f}" for one in reversed(drawn)]
    line = " ".join(f"{x(_middle(one)):.1f},{y(one.mean):.1f}" for one in drawn)
    parts = [
        *(_grid(y(tick), text(tick)) for tick in ticks),
        f'<polygon class="band" points="{" ".join(upper + lower)}"/>',
        f'<polyline class="line" points="{line}"/>',
        *(
            f'<circle class="dot" cx="{x(_middle(one)):.1f}" cy="{y(one.mean):.1f}" r="2"/>'
            for one in drawn[:1]
        ),
        *(_bad_tick(x(_middle(one))) for one in points if one.nonfinite),
        _step_labels(points[0].first_step, points[-1].last_step),
    ]
    return _svg(_CHART, parts)


def heatmap(steps: Sequence[int], layers: Sequence[dict[str, Any]]) -> str:
    """Draw the gradient norm of each layer at each step, by its logarithm; red is NaN or Inf, empty is none.

    Args:
        steps: of the columns.
        layers: each with `name` and `norms`, one for each step, None where there was no gradient.
    """
    columns = _spread(len(steps), _MOST_COLUMNS)
    rows = [layers[index] for index in _spread(len(layers), _MOST_ROWS)]
    known = [layer["norms"][column] for layer in rows for column in columns]
    logs = [math.log10(value) for value in known if value is not None and 0 < value < math.inf]
    if not rows or not columns:
        return ""
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)
    height, left = 14, 190
    width = (WIDTH - left - _RIGHT) / len(columns)
    parts = []
    for place, layer in enumerate(rows):
        top = _TOP + place * height
        name = tables.root_or(str(layer["name"]))
        shown = name if len(name) <= 28 else f"...{name[-25:]}"
        parts.append(
            f'<text class="label" x="{left - 6}" y="{top + 11}" text-anchor="end">{escape(shown)}'
            f"<title>{escape(name)}</title></text>"
        )
        for number, column in enumerate(columns):
            value = layer["norms"][column]
            if value is not None:
                title = escape(f"{name}, step {steps[column]}: {tables.number(value)}")
                parts.append(
                    f'<rect x="{left + number * width:.1f}" y="{top}" width="{width:.1f}" height="{height}" '
                    f'fill="{_colour(value, low, high)}"><title>{title}</title></rect>'
                )
    bottom = _TOP + len(rows) * height + 16
    parts.append(f'<text class="label" x="{left}" y="{bottom}">step {steps[columns[0]]:,}</text>')
    parts.append(
        f'<text class="label" x="{WIDTH - _RIGHT}" y="{bottom}" text-anchor="end">'
        f"step {steps[columns[-1]]:,}</text>"
    )
    return _svg(bottom + 8, parts)


def timeline(events: Sequence[dict[str, Any]], first_step: int, last_step: int) -> str:
    """Draw each event as a mark at its step, a row for each severity.

    Args:
        events: as JSON; the newest 500 are drawn.
        first_step: of the axis.
        last_step: of the axis.
    """
    x = _step_axis(first_step, last_step)
    parts = []
    for row, severity in enumerate(_SEVERITIES):
        y = 20 + 26 * row
        parts.append(f'<text class="label" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{severity}</text>')
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
    for event in events[-_MOST_MARKS:]:
        severity = event["severity"] if event["severity"] in _SEVERITIES else "info"
        y = 20 + 26 * _SEVERITIES.index(severity)
        place = min(max(event["step"], first_step), last_step)
        title = escape(f"step {event['step']}: {event['kind']}")
        parts.append(
            f'<circle class="{severity}" cx="{x(place):.1f}" cy="{y}" r="5"><title>{title}</title></circle>'
        )
    parts.append(_step_labels(first_step, last_step, y=98))
    return _svg(106, parts)


def _value_axis(low: float, high: float) -> tuple[Callable[[float | None], float], list[float]]:
    """A function from values to pixels, and three values to be marked."""
    is_log = low > 0 and high / low >= _LOG_FROM
    scale: Callable[[float], float] = math.log10 if is_log else float
    bottom, top = scale(low), scale(high)
    if top - bottom <= 1e-12 * max(abs(bottom), abs(top), 1e-300):
        bottom, top = bottom - 0.5 * (abs(bottom) or 1.0), top + 0.5 * (abs(top) or 1.0)
    length = _CHART - _TOP - _BOTTOM

    def place(value: float | None) -> float:
        return _TOP + length * (top - scale(value or (low if is_log else 0.0))) / (top - bottom)

    middle = 10 ** ((bottom + top) / 2) if is_log else (bottom + top) / 2
    ends = (10**bottom, 10**top) if is_log else (bottom, top)
    return place, [ends[0], middle, ends[1]]


def _step_axis(first: int, last: int) -> Callable[[float], float]:
    length = WIDTH - _LEFT - _RIGHT
    return lambda step: _LEFT + length * ((step - first) / (last - first) if last > first else 0.5)


def _middle(point: CurvePoint) -> float:
    return (point.first_step + point.last_step) / 2


def _grid(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="label" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _bad_tick(x: float) -> str:
    top, bottom = _TOP, _CHART - _BOTTOM
    place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"'
    return f'<line class="bad" {place}><title>NaN or Inf</title></line>'


def _step_labels(first: int, last: int, *, y: int = _CHART - 6) -> str:
    return (
        f'<text class="label" x="{_LEFT}" y="{y}">step {first:,}</text>'
        f'<text class="label" x="{WIDTH - _RIGHT}" y="{y}" text-anchor="end">step {last:,}</text>'
    )


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` numbers below `count`, evenly spread, both ends among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def _colour(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "#e03131"
    share = 0.0 if value <= 0 or high <= low else (math.log10(value) - low) / (high - low)
    place = min(max(share, 0.0), 1.0) * (len(_SCALE) - 1)
    index = min(int(place), len(_SCALE) - 2)
    mixed = [
        round(one + (other - one) * (place - index))
        for one, other in zip(_SCALE[index], _SCALE[index + 1], strict=True)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _svg(height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
