"""The course of an event's number over the steps before it and at it, as a small picture and in words. Pure.

Drawn of what the event itself has recorded, and of nothing else. The panel and the export show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from probe.wire import Event

from .evidence import measure
from .quantities import number_text

WIDTH: Final = 240
HEIGHT: Final = 40
PAD: Final = 4
"""CSS pixels."""
SIZE: Final = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
"""Attributes of the SVG."""
KINDS: Final = frozenset(
    {
        "nonfinite_loss",
        "loss_spike",
        "nonfinite_gradient",
        "gradient_explosion",
        "gradient_vanishing",
        "overfitting",
        "update_ratio_high",
    }
)
"""Kinds whose value is the same number as those of the steps before: not a median, a rate or a share."""
_LOG_RATIO: Final = 10.0
"""A log scale where all values are positive and differ by more."""
_LINE: Final = "#868e96"
_MARK: Final = "#e8590c"
"""On the dark ground and on the light one, both above 3:1: the picture is an image, which knows no theme."""

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """What is shown."""

    shapes: str
    """What is inside of the SVG; it has no text."""
    words: str
    """What it shows, for who cannot see it: the first value, the one before the event, and the event's."""
    caption: str

    @property
    def address(self) -> str:
        """The picture as a `data:` address, for an image."""
        return "data:image/svg+xml," + quote(
            f'<svg xmlns="http://www.w3.org/2000/svg" {SIZE}>{self.shapes}</svg>'
        )


def sparkline(event: Event) -> Sparkline | None:
    """Return the course of an event's number; None where fewer than two finite values are recorded."""
    if event.kind not in KINDS or event.evidence.value is None:
        return None
    points = [(step, value) for step, value in event.evidence.neighbours if step < event.step]
    points.append((event.step, event.evidence.value))
    finite = [value for _, value in points if math.isfinite(value)]
    if len(finite) < 2:
        return None
    is_log = min(finite) > 0 and max(finite) > _LOG_RATIO * min(finite)
    return Sparkline(
        shapes=_shapes(points, is_log=is_log),
        words=_words(event, points, is_log=is_log),
        caption=_caption(points, is_log=is_log),
    )


def _words(event: Event, points: Points, *, is_log: bool) -> str:
    (first, _), (last, now) = points[0], points[-1]
    known = [(step, value) for step, value in points[:-1] if math.isfinite(value)]
    parts = [f"{number_text(known[0][1])} at first"] if len(known) > 1 else []
    before_step, before = known[-1]
    parts += [f"{number_text(before)} at step {before_step:,}", f"{number_text(now)} at this event"]
    parts += _change(before, now)
    scale = "; log scale" if is_log else ""
    return f"{measure(event).name} over steps {first:,} to {last:,}: {', '.join(parts)}{scale}"


def _caption(points: Points, *, is_log: bool) -> str:
    now = points[-1][1]
    before = [value for _, value in points[:-1] if math.isfinite(value)][-1]
    parts = [f"steps {points[0][0]:,}\u2013{points[-1][0]:,}"]
    if not math.isfinite(now):
        parts.append(f"then {number_text(now)}")
    else:
        parts += _change(before, now)
    return ", ".join([*parts, *(["log scale"] if is_log else [])])


def _change(before: float, now: float) -> list[str]:
    """Say how many times the value before it is; nothing where that says nothing."""
    if not (before > 0 and now > 0 and math.isfinite(now)):
        return []
    times = now / before
    if not 0 < times < math.inf:
        return []
    how = f"{number_text(times)} times" if times >= 1 else f"1/{number_text(1 / times)} of"
    return [f"{how} the value before"]


def _shapes(points: Points, *, is_log: bool) -> str:
    """Lines through finite values that follow each other, a dot at the event, bars at NaN and Inf."""
    change = math.log10 if is_log else _halved
    heights = [change(value) for _, value in points if math.isfinite(value)]
    low, span = min(heights), max(heights) - min(heights)
    first, steps = points[0][0], points[-1][0] - points[0][0]
    lines: list[list[str]] = [[]]
    parts: list[str] = []
    for step, value in points:
        x = round(PAD + (step - first) / steps * (WIDTH - 2 * PAD), 2)
        if not math.isfinite(value):
            parts.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}" stroke="{_MARK}" stroke-width="2"/>')
            lines.append([])
            continue
        share = (change(value) - low) / span if span > 0 else 0.5
        y = round(PAD + (1 - share) * (HEIGHT - 2 * PAD), 2)
        lines[-1].append(f"{x},{y}")
        if step == points[-1][0]:
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{_MARK}"/>')
    drawn = [
        f'<polyline points="{" ".join(line)}" fill="none" stroke="{_LINE}" stroke-width="1.5" '
        f'stroke-linejoin="round" stroke-linecap="round"/>'
        for line in lines
        if line
    ]
    return "".join([*drawn, *parts])


def _halved(value: float) -> float:
    """So that the distance of two values is finite."""
    return value / 2
