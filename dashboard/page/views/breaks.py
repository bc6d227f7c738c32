"""Where a rank's values do not follow from those before: restarts, and stretches of level `off`. Pure.

The live feed sends them as `breaks`, the exports draw and list the same ones. Store and events in, marks out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from probe.wire import Event

from ...store.protocol import RankStart
from .charts import off_steps
from .theme import Theme, colours

MAX_BREAKS: Final = 200
"""Of one rank: a loop that begins again every few steps would hide its lines behind the marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One mark across all charts."""

    step: int
    """Of a restart the first step of the other values, of `off` the last step before it."""
    kind: Literal["restart", "off"]
    text: str


def line_breaks(starts: Sequence[RankStart], events: Iterable[Event], rank: int) -> list[Break]:
    """Return the breaks of a rank, by step; the newest `MAX_BREAKS` starts of many."""
    off = [
        Break(step=step, kind="off", text=f"recording was off after step {step:,}")
        for step in off_steps(events, rank)
    ]
    found = [*restarts(starts), *off]
    return sorted(found[:MAX_BREAKS], key=lambda each: (each.step, each.kind))


def restarts(starts: Sequence[RankStart]) -> list[Break]:
    """Return the steps at which the values shown change from one start's to another's, the newest first.

    At a step the newest start that has it is shown. So there are two kinds of places: where a start begins,
    and where the newer one has not got to yet, behind which an older one's values remain.
    """
    stretches = _stretches(starts)
    found: dict[int, Break] = {}
    for place in range(len(stretches) - 1, 0, -1):
        first, last = stretches[place]
        later = stretches[place + 1 :]
        before = stretches[place - 1][1]
        if not _has(later, first):
            text = f"restarted here, at step {first:,}; it had come to step {before:,}"
            found.setdefault(first, Break(step=first, kind="restart", text=text))
        end = last + 1
        if not _has(later, end) and _has(stretches[:place], end):
            text = f"from step {end:,} on: values from before the restart"
            found.setdefault(end, Break(step=end, kind="restart", text=text))
    return list(found.values())


def extent(starts: Sequence[RankStart]) -> tuple[int, int] | None:
    """Return the first step that any start has, and one past the last; None without a step."""
    stretches = _stretches(starts)
    if not stretches:
        return None
    return min(first for first, _ in stretches), max(last for _, last in stretches) + 1


def steps_of(breaks: Iterable[Break], kind: str) -> list[int]:
    """Return the steps of one kind of breaks, as `charts.line_parts` takes them."""
    return [each.step for each in breaks if each.kind == kind]


def break_fields(breaks: Iterable[Break]) -> list[dict[str, Any]]:
    """Return them as a message and an export have them."""
    return [{"step": each.step, "kind": each.kind, "text": each.text} for each in breaks]


def break_shapes(breaks: Sequence[Break], *, theme: Theme) -> list[dict[str, Any]]:
    """Return a dotted line for every break of a Plotly figure."""
    line = {"color": colours(theme).muted, "width": 1, "dash": "dot"}
    return [
        {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}
        | {"name": each.kind}
        for each in breaks
        for at in [each.step - 0.5 if each.kind == "restart" else each.step + 0.5]
    ]


def _stretches(starts: Sequence[RankStart]) -> list[tuple[int, int]]:
    """Return (first, last) of every stretch of rising steps, oldest first."""
    found: list[tuple[int, int]] = []
    for start in starts:
        if start.first_step is None or start.last_step is None:
            continue
        first = start.first_step
        for to, before in start.returns:
            found.append((first, before))
            first = to
        found.append((first, start.last_step))
    return found


def _has(stretches: Sequence[tuple[int, int]], step: int) -> bool:
    return any(first <= step <= last for first, last in stretches)
