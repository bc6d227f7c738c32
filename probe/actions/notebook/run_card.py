"""The card of a run as HTML and as text: verdict, newest step, loss and gradient norm, a small heatmap. Pure.

Everything is inline, for a notebook has no style sheet of ours: no script, no frame, nothing that is loaded.
All text is escaped; characters that cannot be seen are replaced.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from ...wire.run_verdict import run_verdict
from ..analysis import tables
from ..analysis.report_contents import Contents, gradient_flow
from ..analysis.report_curves import CurvePoint

_WIDTH: Final = 340
_HEIGHT: Final = 64
_MOST_ROWS: Final = 64
_MOST_COLUMNS: Final = 96
_MOST_TEXT: Final = 240
_LOSSES: Final = 32
"""Newest steps whose losses the verdict looks at, as the page does."""
_CELL: Final = 6
"""Pixels of a heatmap's row."""
_SCALE: Final = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""From low to high, as in viridis."""
_BAD: Final = (226, 59, 59, 255)
_NONE: Final = (128, 128, 128, 40)
_ROOT: Final = (
    "font:13px/1.45 system-ui,sans-serif;max-width:740px;padding:10px 14px;border-radius:6px;"
    "border:1px solid rgba(128,128,128,.45)"
)
_SMALL: Final = "font-size:11px;opacity:.75"
_COLOURS: Final = {"critical": "#e03131", "warning": "#b7791f", "none": "inherit"}
_MARKS: Final = {"critical": "\N{BLACK DIAMOND}", "warning": "\N{BLACK UP-POINTING TRIANGLE}", "none": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """What a card shows."""

    run: str
    name: str
    state: str
    contents: Contents
    page: str | None = None
    """Address of the run on a dashboard that runs; None where none does."""

    @property
    def verdict(self) -> tuple[str, str]:
        """State and sentence, as the page's verdict line has them."""
        events = [event for event in self.contents.events.values() if event.severity != "info"]
        newest = list(self.contents.steps)[-_LOSSES:]
        losses = [float(step["loss"]) for step in newest if step.get("loss") is not None]
        found = run_verdict(events, last_step=self.contents.last_step, losses=losses)
        others = len(events) - 1 if found.cause is not None else 0
        return found.state, _with_others(found.sentence, others)

    def facts(self) -> str:
        """The line below the verdict."""
        newest = self.contents.last_step
        step = "waiting for the first step" if newest is None else f"step {newest:,}"
        return " \N{MIDDLE DOT} ".join(filter(None, (self.name, step, self.state, self._speed())))

    def _speed(self) -> str:
        times = [step.get("step_time_s") for step in list(self.contents.steps)[-32:]]
        known = [time for time in times if isinstance(time, int | float) and time > 0]
        return f"{len(known) / sum(known):.3g} steps/s" if known and self.state == "running" else ""

    def text(self) -> str:
        """All of it without a picture."""
        lines = [f"{_MARKS[self.verdict[0]]} {self.verdict[1]}".strip(), self.facts()]
        lines += [f"{title}: {newest}" for title, newest, _ in self._series()]
        return "\n".join(map(visible, lines))

    def html(self) -> str:
        """The card."""
        severity, sentence = self.verdict
        mark = f"{_MARKS[severity]} {sentence}".strip()
        charts = "".join(_chart(*series) for series in self._series())
        link = ""
        if self.page is not None:
            to = f'href="{escape(self.page)}" target="_blank" rel="noopener"'
            link = f" \N{MIDDLE DOT} <a {to}>open the page</a>"
        return (
            f'<div style="{_ROOT}">'
            f'<div style="font-weight:600;color:{_COLOURS[severity]}">{_text(mark)}</div>'
            f'<div style="{_SMALL}">{_text(self.facts())}{link}</div>'
            f'<div style="display:flex;flex-wrap:wrap;gap:4px 20px;margin-top:6px">{charts}</div>'
            f"{_heatmap(self.contents)}</div>"
        )

    def _series(self) -> list[tuple[str, str, Sequence[CurvePoint]]]:
        """Title, newest value and points: a point may stand for many steps."""
        named = (("loss", "Loss"), ("grad_norm", "Gradient norm"))
        curves = self.contents.curves
        return [(title, self._newest(name), curves[name].points()) for name, title in named if name in curves]

    def _newest(self, name: str) -> str:
        values = (step[name] for step in reversed(self.contents.steps) if name in step)
        value = next(values, None)
        return value if isinstance(value, str) else tables.number(value)


def visible(text: str) -> str:
    """Without characters that cannot be seen, or that turn the order of others."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _text(text: str) -> str:
    shown = visible(" ".join(text.split()))
    return escape(shown if len(shown) <= _MOST_TEXT else f"{shown[: _MOST_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}")


def _with_others(sentence: str, others: int) -> str:
    more = f" \N{MIDDLE DOT} {others:,} other event{'' if others == 1 else 's'}"
    return f"{sentence}{more}" if others > 0 else sentence


def _chart(title: str, newest: str, points: Sequence[CurvePoint]) -> str:
    """A line of the means; a red tick where a value was NaN or Inf."""
    known = [one.mean for one in points if one.mean is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    is_log = low > 0 and high / low >= 100.0
    scale = math.log10 if is_log else float
    bottom, top = (scale(low), scale(high)) if known else (0.0, 1.0)
    room = (top - bottom) or 1.0
    first, last = points[0].first_step, points[-1].last_step

    def x(one: CurvePoint) -> float:
        return 2 + (_WIDTH - 4) * (((one.first_step + one.last_step) / 2 - first) / (last - first or 1))

    dots = [
        f"{x(one):.1f},{4 + (_HEIGHT - 8) * (top - scale(one.mean)) / room:.1f}"
        for one in points
        if one.mean is not None
    ]
    bad = "".join(
        f'<line x1="{x(one):.1f}" x2="{x(one):.1f}" y1="0" y2="{_HEIGHT}" stroke="#e03131"/>'
        for one in points
        if one.nonfinite
    )
    says = f"{title}, steps {first:,} to {last:,}: from {tables.number(points[0].mean)}, now {newest}"
    return (
        f'<div><div style="{_SMALL}">{_text(title)}{" (log)" if is_log else ""} '
        f'<b style="font-size:13px">{_text(newest)}</b></div>'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{_text(says)}">{bad}'
        f'<polyline points="{" ".join(dots)}" fill="none" stroke="#1c7ed6" stroke-width="1.5"/></svg></div>'
    )


def _heatmap(contents: Contents) -> str:
    """Gradient norms of the layers over the steps, as one small image; red is NaN or Inf."""
    flow = gradient_flow(contents)
    steps, layers = flow["steps"], flow["layers"]
    rows = [layers[index] for index in _spread(len(layers), _MOST_ROWS)]
    columns = _spread(len(steps), _MOST_COLUMNS)
    if not rows or not columns:
        return ""
    values = [[layer["norms"][column] for column in columns] for layer in rows]
    image = base64.b64encode(_png(_pixels(values))).decode()
    shown = f"{len(rows)} of {len(layers):,}" if len(rows) < len(layers) else f"{len(rows)}"
    first, last = str(rows[0]["name"]), str(rows[-1]["name"])
    says = f"Gradient norms of {shown} layers, {first} to {last}, steps {steps[0]:,} to {steps[-1]:,}"
    return (
        f'<div style="{_SMALL};margin-top:6px">{_text(says)}; red: NaN or Inf</div>'
        f'<img alt="{_text(says)}" src="data:image/png;base64,{image}" '
        f'style="width:100%;height:{min(_CELL * len(rows), 180)}px;image-rendering:pixelated;display:block">'
    )


def _pixels(values: Sequence[Sequence[float | None]]) -> list[list[tuple[int, int, int, int]]]:
    logs = [math.log10(v) for row in values for v in row if v is not None and 0 < v < math.inf]
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)

    def colour(value: float | None) -> tuple[int, int, int, int]:
        if value is None:
            return _NONE
        if not math.isfinite(value):
            return _BAD
        share = (math.log10(value) - low) / ((high - low) or 1.0) if value > 0 else 0.0
        place = min(max(share, 0.0), 1.0) * (len(_SCALE) - 1)
        left = min(int(place), len(_SCALE) - 2)
        red, green, blue = (
            round(a + (b - a) * (place - left)) for a, b in zip(_SCALE[left], _SCALE[left + 1], strict=True)
        )
        return red, green, blue, 255

    return [[colour(value) for value in row] for row in values]


def _png(pixels: Sequence[Sequence[tuple[int, int, int, int]]]) -> bytes:
    """An 8-bit RGBA image (the PNG specification: chunks of length, type, data and CRC)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in pixels)
    head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _spread(count: int, most: int) -> list[int]:
    """At most so many positions, evenly; with the first and the last."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def bundle_of(card: RunCard) -> dict[str, Any]:
    """Return the card as a notebook takes it: HTML, and text for who shows none."""
    return {"text/html": card.html(), "text/plain": card.text()}
