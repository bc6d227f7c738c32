"""Two memory snapshots side by side: what has grown between them, by kind and by line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dash import html
from dash.development.base_component import Component

from probe.wire import Event
from probe.wire.memory_snapshots import MemorySnapshot

from .memory_growth import place_of
from .quantities import bytes_text

KINDS: Final[Mapping[str, str]] = {
    "memory_parameters_bytes": "parameters",
    "memory_gradients_bytes": "gradients",
    "memory_optimizer_bytes": "optimizer",
    "memory_activations_bytes": "activations",
    "memory_other_bytes": "other",
}
"""Series of what the memory is for -> what the page calls each."""
_SIZES: Final[tuple[tuple[str, str], ...]] = (
    ("rss_bytes", "process"),
    ("uss_bytes", "its own pages"),
    ("system_used_bytes", "machine in use"),
    ("tracked_bytes", "tracked tensors"),
)
_CUDA: Final[tuple[tuple[str, str], ...]] = (
    ("allocated_bytes", "CUDA allocated"),
    ("reserved_bytes", "CUDA reserved"),
    ("peak_allocated_bytes", "CUDA peak"),
    ("fragmentation_bytes", "CUDA reserved, in no tensor"),
)
_MOST_CHOICES: Final = 24
"""Spread evenly, the first and the newest among them: every option is a component, which is slow to draw."""


class Moment(NamedTuple):
    """A snapshot, and what the memory was for at the newest reading before it."""

    id: str
    """Names it in an address: start and key."""
    snapshot: MemorySnapshot
    kinds: Mapping[str, float]
    """Bytes by series; empty where none was read before it."""


def comparison(
    choices: Sequence[tuple[str, MemorySnapshot]],
    before: Moment,
    after: Moment,
    *,
    leaks: Sequence[Event] = (),
) -> Component:
    """Return two selects and the table.

    Args:
        choices: id and snapshot of all that can be chosen, oldest first.
        before: the older one.
        after: the newer one.
        leaks: events of kind `memory_leak` of the rank.
    """
    step = max(1.0, (len(choices) - 1) / (_MOST_CHOICES - 1))
    spread = {round(at * step) for at in range(min(len(choices), _MOST_CHOICES))}
    offered = [one for at, one in enumerate(choices) if at in spread or one[0] in (before.id, after.id)]
    picks = [_select(offered, before.id, "First"), " and ", _select(offered, after.id, "Second")]
    heads = ("", _when(before.snapshot), _when(after.snapshot), "Change")
    rows = [_row(*line) for line in _lines(before, after)]
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th(head, scope="col") if head else html.Td() for head in heads])),
            html.Tbody(rows),
        ],
        className="ns-memory-table ns-compared",
    )
    fed = [
        html.P([html.Code(place_of(event) or event.subject), f" {text}"], className="ns-small")
        for event in leaks
        if (text := _fed(event, before.snapshot, after.snapshot))
    ]
    scroll = {"tabIndex": 0, "role": "group", "aria-label": "Comparison of the snapshots"}
    return html.Div(
        [
            html.Div(["Compare ", *picks], className="ns-compare-picks"),
            html.Div(table, className="ns-memory", **scroll),
            *fed,
        ]
    )


def _lines(before: Moment, after: Moment) -> list[tuple[str, float | None, float | None]]:
    lines = [(label, before.kinds.get(name), after.kinds.get(name)) for name, label in KINDS.items()]
    for field, label in _SIZES:
        lines.append((label, getattr(before.snapshot, field), getattr(after.snapshot, field)))
    for field, label in _CUDA:
        lines.append((label, before.snapshot.cuda_sum(field), after.snapshot.cuda_sum(field)))
    return [line for line in lines if line[1] or line[2]]


def _row(label: str, before: float | None, after: float | None) -> Component:
    change = None if before is None or after is None else after - before
    cells = [html.Td("-" if size is None else bytes_text(size)) for size in (before, after)]
    return html.Tr([html.Th(label, scope="row"), *cells, html.Td(_change(change), className="ns-change")])


def _change(change: float | None) -> str:
    if change is None:
        return "-"
    return "0" if change == 0 else ("+" if change > 0 else "\u2212") + bytes_text(abs(change))


def _when(snapshot: MemorySnapshot) -> str:
    return "before the first step" if snapshot.step is None else f"At step {snapshot.step:,}"


def _fed(event: Event, before: MemorySnapshot, after: MemorySnapshot) -> str:
    """What a line has fed between two snapshots, at the pace that its event tells."""
    pace, first, last = event.evidence.value, before.step, after.step
    if pace is None or first is None or last is None or last <= first or event.step > last:
        return ""
    return f"feeds {event.subject or 'the process'}: about {bytes_text(pace * (last - first))} between them."


def _choice(snapshot: MemorySnapshot) -> str:
    """The step first: a select shows the beginning alone where there is little room."""
    step = "before step 0" if snapshot.step is None else f"step {snapshot.step:,}"
    return f"{step}, {snapshot.label}" if snapshot.label else step


def _select(choices: Sequence[tuple[str, MemorySnapshot]], picked: str, label: str) -> Component:
    options = [html.Option(_choice(one), value=id_) for id_, one in choices]
    names = {"data-picked": picked, "aria-label": f"{label} snapshot"}
    return html.Select(options, className="ns-heading ns-compare", **names)
