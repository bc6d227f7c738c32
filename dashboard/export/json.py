"""A run as one versioned JSON object, for scripts and other tools.

Format ``nanscope-run``, ``v`` 1. Missing is null; non-finite numbers are ``"NaN"`` and ``"Infinity"``.

    {"format", "v", "exported",                     UNIX seconds
     "run": {"id", "name", "state", "started", ...}  plus every field of the run's `run.json`
     "rank",
     "track",                                        id of the only one that the file has | null: all of them
     "range": {"asked": {"first", "end"}, "covered": {"first", "end"},    half-open, in steps
               "steps_per_point", "steps_per_column"},                     1 is: nothing is down-sampled
     "layout": {"model", "layers": [...], "parameters": [...]} | null,
     "series": {name: {"unit", "description", "step", "time", "min", "mean", "max", "nan", "inf", "pooled"}},
     "heatmap": {"statistic", "measured_every", "pooling", "rows", "row_kinds", "steps", "steps_per_column",
                 "values", "flags"} | null,
     "events": [...],                                docs/interfaces.md: Event, as JSON
     "notes": [{"id", "step", "text", "time"}],       what people have written at steps, by step
     "breaks": [{"step", "kind": "restart" | "off", "text"}],   a restart's: the first step of other values
     "starts": [{"incarnation", "time", "first_step", "last_step", "returns": [[step, newest before], ...]}],
     "gaps": [...], "delivery": [...]}

A series is a set of equally long columns, one entry per point; `min`, `mean` and `max` are over the finite
values of the `pooled` steps of a point, `nan` and `inf` count the others. `values[row][column]` is the
largest finite value, `flags` has bit 0: measured, bit 1: NaN, bit 2: Inf. Of a statistic that only one step
in `measured_every` has, a column is so wide that it holds a measured step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from probe.wire import SCALARS
from probe.wire.event_json import event_json, jsonable

from ..page.views.breaks import break_fields
from ..page.views.heatmap_statistics import DEFAULT_STATISTIC
from ..page.views.theme import ALL_STEPS
from ..store.protocol import Heatmap, StepRange, Store
from .snapshot import Snapshot, take_snapshot

FORMAT = "nanscope-run"
VERSION = 1
JSON_POINTS = 10_000
"""Points per series: ten times what a chart needs, since a script may want to compute with them."""


def export_json(
    store: Store,
    run: str,
    *,
    rank: int = 0,
    steps: StepRange = ALL_STEPS,
    statistic: str = DEFAULT_STATISTIC,
    track: str | None = None,
) -> dict[str, Any]:
    """Return one rank of a run, or one track of it, as the object above; every JSON encoder can write it.

    Raises:
        UnknownRunError: the store has no such run or rank.
        UnknownTrackError: the rank has no such track.
    """
    snapshot = take_snapshot(
        store, run, rank=rank, steps=steps, max_points=JSON_POINTS, statistic=statistic, track=track
    )
    return {
        "format": FORMAT,
        "v": VERSION,
        "exported": snapshot.exported,
        "run": _run(snapshot),
        "rank": rank,
        "track": None if snapshot.track is None else snapshot.track.id,
        "range": {
            "asked": _range(snapshot.asked),
            "covered": _range(snapshot.covered),
            "steps_per_point": snapshot.steps_per_point,
            "steps_per_column": snapshot.steps_per_column,
        },
        "layout": jsonable(snapshot.layout),
        "series": {
            str(name): series_columns(str(name), rows) for name, rows in snapshot.series.groupby("name")
        },
        "heatmap": _heatmap(snapshot),
        "events": [event_json(event) for event in snapshot.events],
        "notes": [_fields(note) for note in snapshot.notes],
        "breaks": break_fields(snapshot.breaks),
        "starts": [_fields(start) for start in snapshot.starts],
        "gaps": [_fields(gap) for gap in snapshot.gaps],
        "delivery": [{**_fields(position), "key": jsonable(position.key)} for position in snapshot.positions],
    }


def _run(snapshot: Snapshot) -> dict[str, Any]:
    summary = snapshot.run
    (rank,) = [known for known in summary.ranks if known.rank == snapshot.rank]
    start = jsonable(summary.start)
    return {
        **{name: value for name, value in start.items() if name not in ("run", "rank")},
        "id": summary.run,
        "name": summary.name,
        "started": summary.started,
        **{name: value for name, value in _fields(rank).items() if name != "rank"},
    }


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass; nested records are left as they are."""
    return {name: jsonable(getattr(record, name)) for name in record.__dataclass_fields__}


def _range(steps: StepRange) -> dict[str, int | None]:
    return {"first": steps.first, "end": steps.end}


def series_columns(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Return a series as equally long columns, out of its rows of `Store.scalars`."""
    columns: dict[str, Any] = {
        column: [int(number) for number in rows[column]] for column in ("step", "nan", "inf", "pooled")
    }
    columns["time"] = [jsonable(float(number)) for number in rows["time"]]
    for column in ("min", "mean", "max"):
        columns[column] = [
            _finite_or_name(float(value), nan=nan > 0, inf=inf > 0)
            for value, nan, inf in zip(rows[column], rows["nan"], rows["inf"], strict=True)
        ]
    return {**series_facts(name), **columns}


def series_facts(name: str) -> dict[str, str]:
    """Return the unit and the description of a series; empty where there is none."""
    unit = "bytes" if name.endswith("_bytes") else "s" if name.endswith("_s") else ""
    return {"unit": unit, "description": SCALARS.get(name, "")}


def _finite_or_name(value: float, *, nan: bool, inf: bool) -> float | str | None:
    """A finite number as it is; else what stood there instead, or null for nothing."""
    if np.isfinite(value):
        return value
    return "NaN" if nan else "Infinity" if inf else None


def _heatmap(snapshot: Snapshot) -> dict[str, Any] | None:
    heatmap = snapshot.heatmap
    if heatmap is None:
        return None
    return {
        "statistic": snapshot.statistic.id,
        "measured_every": snapshot.measured_every,
        "pooling": "maximum",
        **heatmap_cells(heatmap),
    }


def heatmap_cells(heatmap: Heatmap) -> dict[str, Any]:
    """Return rows, columns and cells; a cell that holds no finite value says what stood there."""
    return {
        "rows": list(heatmap.rows),
        "row_kinds": list(heatmap.row_kinds),
        "steps": [int(step) for step in heatmap.steps],
        "steps_per_column": heatmap.steps_per_column,
        "values": [
            [
                _finite_or_name(value, nan=bool(flag & 2), inf=bool(flag & 4))
                for value, flag in zip(values, flags, strict=True)
            ]
            for values, flags in zip(heatmap.values.tolist(), heatmap.flags.tolist(), strict=True)
        ],
        "flags": heatmap.flags.tolist(),
    }
