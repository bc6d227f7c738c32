"""The memory snapshots of a rank: a table with what has changed from one to the next, their trend. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from dash import html
from dash.development.base_component import Component

from probe.detectors.trends import fit_line
from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.memory_snapshots import MemorySnapshot

from ...store.protocol import StoredDocument
from .quantities import bytes_text, number_text

ROWS: Final = 40
"""The newest snapshots that the table shows."""
_UNREADABLE: Final = "Snapshots of another version, which cannot be read: {:,}."
_CAUSES: Final = {"call": "the script", "steps": "cadence", "epoch": "end of epoch", "request": "a request"}
Size: TypeAlias = Callable[[MemorySnapshot], int | None]
_HOST: Final[tuple[tuple[str, Size], ...]] = (
    ("Process", lambda one: one.rss_bytes),
    ("Its own pages", lambda one: one.uss_bytes),
    ("Machine in use", lambda one: one.system_used_bytes),
)
_TRACKED: Final[tuple[tuple[str, Size], ...]] = (
    ("Tracked tensors", lambda one: one.tracked_bytes if one.tracked_tensors else None),
)
_CUDA: Final[tuple[tuple[str, Size], ...]] = (
    ("CUDA allocated", lambda one: one.cuda_sum("allocated_bytes")),
    ("CUDA reserved", lambda one: one.cuda_sum("reserved_bytes")),
    ("CUDA peak", lambda one: one.cuda_sum("peak_allocated_bytes")),
)


def memory_section(documents: Sequence[StoredDocument]) -> Component:
    """Return the trend in a sentence, what CUDA's allocators say, and the table, the newest snapshot first.

    Snapshots of several starts of a rank are of different processes: differences and trend are within one.
    """
    known, unreadable = _read(documents)
    newest = max((start for start, _ in known), default=0)
    present = [snapshot for start, snapshot in known if start == newest]
    said = [
        trend_sentence(present),
        *_allocator_sentences(present),
        *([_UNREADABLE.format(unreadable)] if unreadable else []),
        *([f"The newest {ROWS} of {len(known):,} are shown."] if len(known) > ROWS else []),
    ]
    return html.Div([*(html.P(text, className="ns-small") for text in said if text), *_table(known)])


def trend_sentence(snapshots: Sequence[MemorySnapshot]) -> str:
    """Say how the process's memory changes from step to step, or in time where there are no steps."""
    sized = [one for one in snapshots if one.rss_bytes is not None]
    stepped = [one for one in sized if one.step is not None]
    per_step = len({one.step for one in stepped}) > 2
    used = stepped if per_step else sized
    if len(used) < 3:
        return ""
    places = [float(one.step or 0) if per_step else one.time - used[0].time for one in used]
    line = fit_line(places, [float(one.rss_bytes or 0) for one in used])
    if line is None or line.low is None or line.high is None:
        return ""
    unit = "step" if per_step else "second"
    interval = f"{_signed(line.low)} to {_signed(line.high)}"
    if not line.rises:
        return (
            f"No significant growth: {_signed(line.slope)} per {unit} (95 % interval {interval}, "
            f"{len(used):,} snapshots)."
        )
    return (
        f"The process grows by {bytes_text(line.slope)} per {unit} (95 % interval {interval}, "
        f"{len(used):,} snapshots)."
    )


def _allocator_sentences(snapshots: Sequence[MemorySnapshot]) -> list[str]:
    """What the newest snapshot says of each device's allocator."""
    devices = snapshots[-1].cuda if snapshots else ()
    return [
        f"cuda:{one.device} {one.name}: {bytes_text(one.fragmentation_bytes)} reserved and in no tensor, "
        f"{number_text(one.segments)} segments, {number_text(one.retries)} retries, "
        f"{number_text(one.ooms)} times out of memory."
        for one in devices
    ]


def _read(documents: Sequence[StoredDocument]) -> tuple[list[tuple[int, MemorySnapshot]], int]:
    """Start (incarnation) and snapshot of each document by time; how many cannot be read."""
    found = []
    for stored in documents:
        try:
            found.append((stored.incarnation, read_body(stored.document, MemorySnapshot)))
        except WireError:
            continue
    return sorted(found, key=lambda one: (one[0], one[1].time)), len(documents) - len(found)


def _table(known: Sequence[tuple[int, MemorySnapshot]]) -> list[Component]:
    if not known:
        return []
    columns = [*_HOST]
    for more in (_TRACKED, _CUDA):
        columns += more if any(size(one) is not None for _, one in known for _, size in more) else ()
    heads = ("Snapshot", "Step", "Taken by", *(name for name, _ in columns))
    before = [None, *(a if a[0] == b[0] else None for a, b in pairwise(known))]
    rows = [
        _row(one, None if earlier is None else earlier[1], [size for _, size in columns])
        for (_, one), earlier in zip(known, before, strict=True)
    ]
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
            html.Tbody(rows[: -ROWS - 1 : -1]),
        ],
        className="ns-memory-table",
    )
    return [html.Div(table, className="ns-memory", tabIndex=0, role="group", **{"aria-label": "Snapshots"})]


def _row(one: MemorySnapshot, earlier: MemorySnapshot | None, sizes: Sequence[Size]) -> Component:
    cells = [
        html.Th(one.label or "without a label", scope="row"),
        html.Td("-" if one.step is None else f"{one.step:,}"),
        html.Td(_CAUSES[one.cause]),
        *(html.Td(_size_cell(size(one), None if earlier is None else size(earlier))) for size in sizes),
    ]
    return html.Tr(cells)


def _size_cell(value: int | None, before: int | None) -> list[str | Component]:
    if value is None:
        return ["-"]
    if before is None:
        return [bytes_text(value)]
    change = html.Span(_signed(value - before) if value != before else "\u00b1 0", className="ns-small")
    return [bytes_text(value), " ", change]


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "\u2212") + bytes_text(abs(value))
