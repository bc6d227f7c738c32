"""Whether memory grows over the steps in view, how fast, and which line of the script feeds it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import numpy as np
import pandas as pd
from dash import html
from dash.development.base_component import Component

from probe.wire import Event

from .quantities import bytes_text, number_text
from .robust_slope import Slope, robust_slope

PER_STEPS: Final = 1000
"""Growth is given for so many steps."""
WATCHED: Final = (("process_rss_bytes", "The process"), ("cuda_allocated_bytes", "CUDA memory of tensors"))
"""Series whose growth is told, and how a sentence calls them."""
_LEAST_BYTES: Final = 4.0 * 2**20
_LEAST_SHARE: Final = 0.005
"""Growth over all steps in view of less than this, or than this share of the memory, is none: allocators keep
some, and what a script imports late is no leak."""
_LEAST_NEWEST: Final = 8
_WARMUP_STEPS: Final = 5
"""The first steps make gradients, optimizer state and scratch space: their growth is none."""


def growth_slope(rows: pd.DataFrame) -> Slope | None:
    """Return the robust slope of one series in bytes a step, the first steps of a run left out.

    Args:
        rows: of `Store.scalars`, of one name.
    """
    steps = rows["step"].to_numpy(dtype=np.float64)
    kept = steps >= _WARMUP_STEPS
    middle = steps + (rows["pooled"].to_numpy(dtype=np.float64) - 1.0) / 2.0
    order = np.argsort(middle[kept], kind="stable")
    return robust_slope(middle[kept][order], rows["mean"].to_numpy(dtype=np.float64)[kept][order])


def grows(slope: Slope) -> bool:
    """Whether it is growth, and not noise."""
    least = max(_LEAST_BYTES, _LEAST_SHARE * slope.level)
    return slope.low > 0 and slope.value * slope.span >= least


def growth_sentences(data: pd.DataFrame, *, free_bytes: float | None = None) -> list[str]:
    """Return a sentence for each series of `WATCHED` that has enough readings in these steps.

    Args:
        data: rows of `Store.scalars`.
        free_bytes: memory of the machine that is not in use; None: not known.
    """
    said = []
    for name, what in WATCHED:
        rows = data[data["name"] == name]
        slope = growth_slope(rows)
        if slope is not None:
            newest = growth_slope(rows.iloc[-max(len(rows) // 4, _LEAST_NEWEST) :])
            is_of_machine = name == "process_rss_bytes"
            said.append(_sentence(what, slope, newest, free_bytes if is_of_machine else None))
    return said


def _sentence(what: str, slope: Slope, newest: Slope | None, free_bytes: float | None) -> str:
    seen = f"{slope.points:,} readings over {slope.span:,.0f} steps"
    pace = per_steps_text(slope.value)
    if not grows(slope):
        return f"{what}: no growth within the noise ({pace} per {PER_STEPS:,} steps, {seen})."
    interval = f"95 % interval {per_steps_text(slope.low)} to {per_steps_text(slope.high)}"
    text = f"{what} grows by {pace} per {PER_STEPS:,} steps ({interval}, {seen})."
    if newest is not None:
        text += f" The newest quarter of them: {per_steps_text(newest.value)}."
    if free_bytes is not None and free_bytes > 0 and newest is not None and newest.value > 0:
        lasts = f"{float(f'{free_bytes / newest.value:.2g}'):,.0f}"
        text += f" The machine's free memory ({bytes_text(free_bytes)}) will run out in about {lasts} steps."
    return text


def per_steps_text(bytes_per_step: float) -> str:
    """Return growth for `PER_STEPS` steps, with its sign and three digits: ``+820 MiB``."""
    size, sign = abs(PER_STEPS * bytes_per_step), "+" if bytes_per_step >= 0 else "\u2212"
    unit = 1024.0 ** int(math.log(size, 1024)) if size >= 1 else 1.0
    return sign + bytes_text(float(f"{size / unit:.3g}") * unit)


def feeds_table(events: Sequence[Event]) -> list[Component]:
    """Return what the leak events say: each with its line, how much it gets, and what to do about it.

    Args:
        events: of one rank, kind `memory_leak`, by step.
    """
    if not events:
        return []
    heads = ("Line", "What grows", "Items", "A step", f"Per {PER_STEPS:,} steps", "Found at step")
    rows = [html.Tr([html.Th(head, scope="col") for head in heads])]
    table = html.Table(
        [html.Thead(rows), html.Tbody([_row(event) for event in events])],
        className="ns-memory-table ns-feeds",
    )
    advice = list(dict.fromkeys(_remedy(event) for event in events))
    scroll = {"tabIndex": 0, "role": "group", "aria-label": "Lines that feed the growth"}
    return [
        html.Div(table, className="ns-memory", **scroll),
        *(html.P(with_code(text), className="ns-small") for text in advice if text),
    ]


def with_code(text: str) -> list[str | Component]:
    """Return a text with what stands between backticks as code."""
    parts = text.split("`")
    return [html.Code(part) if number % 2 else part for number, part in enumerate(parts) if part]


def _row(event: Event) -> Component:
    numbers, pace = event.evidence.baseline or {}, event.evidence.value
    opens = html.Button(
        place_of(event) or "line not known",
        className="ns-link ns-feeds-line",
        title="Open the event",
        **{"data-open-event": event.id},
    )
    items, rate = numbers.get("items"), numbers.get("items_per_step")
    cells = (
        event.subject or "process",
        "-" if items is None else f"{items:,.0f}",
        "-" if rate is None else number_text(rate),
        "-" if pace is None else per_steps_text(pace),
        f"{event.step:,}",
    )
    return html.Tr([html.Th(opens, scope="row"), *(html.Td(cell) for cell in cells)])


def place_of(event: Event) -> str:
    """Return the line that feeds a leak, ``train.py:148``; empty where the event names none."""
    stack = event.stacks.training_loop
    # Without a container the stack is that of the loop alone, and its line feeds nothing.
    if not stack or not _names_container(event):
        return ""
    return f"{PurePath(stack[-1].file).name}:{stack[-1].line}"


def _names_container(event: Event) -> bool:
    return "items" in (event.evidence.baseline or {})


def _remedy(event: Event) -> str:
    """What the event's last line says to do."""
    return event.message.splitlines()[-1] if _names_container(event) and "\n" in event.message else ""
