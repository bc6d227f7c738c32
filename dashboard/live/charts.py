"""The line charts of a picture: header fields and tracks.

Called by `pictures` on the hub's reader threads. Everything here costs the pixels asked for, not the
steps stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from ..page.views.breaks import Break, steps_of
from ..page.views.chart_marks import mark_note, mark_part
from ..page.views.chart_specs import CHARTS, MAX_LOGGED, ChartSpec, logged_chart, logged_names
from ..page.views.charts import line_parts, pooling_note
from ..page.views.memory_series import GROWTH
from ..page.views.throughput import stored_names, with_derived, with_derived_names
from ..store.protocol import StepRange, Store
from .tracks import Track, line_track

_TIMED_BY: Final = ("step_time_s", "loss", "grad_norm", "process_rss_bytes")
"""Series whose points say when steps were; the first that a run has, the densest first."""


def read_charts(
    store: Store,
    run: str,
    rank: int,
    *,
    steps: StepRange,
    points: int,
    breaks: Sequence[Break] = (),
    with_logged: bool = False,
) -> tuple[dict[str, Any], list[Track]]:
    """Read all line charts.

    Args:
        store: What is read.
        run: The run in view.
        rank: Its rank in view.
        steps: Steps in view.
        points: Most points of a line.
        breaks: Where lines are broken.
        with_logged: The user's own series too.

    Returns:
        Header fields and tracks. The fields are `charts`: for each chart its series in these steps, notes,
        and whether the run has any of it at all; `logged`: names of the user's own series, at most
        `MAX_LOGGED`, and how many there are.
    """
    known = store.scalar_names(run, rank)
    logged = logged_names(known)
    shown = [logged_chart(name) for name in logged[:MAX_LOGGED]] if with_logged else []
    specs = [*CHARTS, *shown]
    known = with_derived_names(known)
    names = stored_names(name for spec in specs for name in (*spec.lines(known), *spec.marks))
    data = with_derived(store.scalars(run, rank, names, steps, points))
    by_name = {str(name): rows for name, rows in data.groupby("name", sort=False)}
    tracks = [_times(data)]
    # Growth over so few readings that there is none yet takes no place.
    known = [name for name in known if name in by_name or name not in GROWTH]
    fields = {spec.id: _draw(spec, known, by_name, breaks, tracks) for spec in specs}
    return {"charts": fields, "logged": {"names": logged[:MAX_LOGGED], "count": len(logged)}}, tracks


def _times(data: pd.DataFrame) -> Track:
    """Return when steps were: ascending steps, and seconds since the epoch at the start of each point."""
    names = data["name"].to_numpy(dtype=object)
    of = next((name for name in _TIMED_BY if (names == name).any()), None)
    rows = data[names == of].sort_values("step")
    return Track("times/x", rows["step"].to_numpy(dtype="<f8"), "times/y", rows["time"].to_numpy(dtype="<f8"))


def _draw(
    spec: ChartSpec,
    known: list[str],
    by_name: dict[str, pd.DataFrame],
    breaks: Sequence[Break],
    tracks: list[Track],
) -> dict[str, Any]:
    """Add the tracks of one chart and return its fields."""
    lines = spec.lines(known)
    series = [name for name in lines if name in by_name]
    off, restarts = steps_of(breaks, "off"), steps_of(breaks, "restart")
    for name in series:
        parts = line_parts(by_name[name], unit=spec.unit, breaks=off, restarts=restarts)
        for part, trace in parts.items():
            if spec.stacked and part in ("low", "high"):
                continue  # the range of a part says nothing of the sum
            tracks.append(line_track(f"{spec.id}/{name}/{part}", trace.x, trace.y))
    marks = {name: mark for name, mark in spec.marks.items() if name in by_name}
    for name, mark in marks.items():
        trace = mark_part(by_name[name], mark)
        tracks.append(line_track(f"{spec.id}/{name}/mark", trace.x, trace.y))
    pooling = pooling_note(pd.concat([by_name[name] for name in series])) if series else ""
    note = ", ".join(filter(None, [spec.remark if series else "", pooling]))
    fields: dict[str, Any] = {"series": series, "note": note, "present": bool(lines)}
    if marks:
        fields["marks"] = {name: mark_note(by_name[name], mark) for name, mark in marks.items()}
    return fields
