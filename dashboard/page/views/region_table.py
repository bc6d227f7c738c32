"""The table of a run's regions: times, memory and gradient anomalies of each. Documents in, component out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.region_times import RegionBody

from ...store.protocol import StoredDocument
from .tiles import significant

_HEADER: Final = (
    *("Region", "Runs", "Mean", "Newest 20", "Limit", "Longest"),
    *("Process memory, most in a run", "CUDA at its end", "Gradient anomalies", "Errors"),
)


def region_table(documents: Sequence[StoredDocument]) -> Component:
    """Draw a row for each region, by name; one whose newest runs are slower than its limit is marked."""
    rows = [_row(found) for found in sorted(documents, key=lambda found: found.document.key)]
    head = html.Tr([html.Th(title) for title in _HEADER])
    return html.Div(
        html.Table([html.Thead(head), html.Tbody(rows)], className="event-evidence"),
        style={"overflowX": "auto"},
    )


def _row(found: StoredDocument) -> Component:
    try:
        body = read_body(found.document, RegionBody)
    except WireError:
        return html.Tr([html.Th(found.document.key), html.Td("cannot be read", colSpan=len(_HEADER) - 1)])
    limit_s = body.slow_above_s
    is_slow = limit_s is not None and body.running_mean_s > limit_s
    newest = _duration(body.running_mean_s)
    cells = [
        f"{body.count:,}",
        _duration(body.mean_s),
        f"\N{BLACK UP-POINTING TRIANGLE} {newest}, too slow" if is_slow else newest,
        "" if limit_s is None else _duration(limit_s),
        _duration(body.max_s),
        _size(body.max_rss_delta_bytes),
        "" if body.cuda_bytes is None else _size(body.cuda_bytes),
        f"{body.gradient_anomalies:,}" if body.gradient_anomalies else "",
        f"{body.errors:,}" if body.errors else "",
    ]
    hints = {7: "\n".join(body.newest_anomalies)}
    return html.Tr(
        [
            html.Th(body.path),
            *(html.Td(text, title=hints.get(place)) for place, text in enumerate(cells)),
        ]
    )


def _duration(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if abs(seconds) * factor >= 1:
            return f"{significant(seconds * factor, digits=3)} {unit}"
    return f"{significant(seconds * 1e6, digits=3)} \N{MICRO SIGN}s"


def _size(count_bytes: int) -> str:
    value, unit = float(count_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{significant(value, digits=3)} {unit}"
