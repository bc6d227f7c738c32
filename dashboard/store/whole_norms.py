"""The gradient norm of a sharded model, put together from its ranks' parts at every commit.

Each rank writes the part of the squared norm that is its own (`grad_square_part`), and waits for no other.
The root of their sum is kept as `grad_norm_whole` of the lowest rank, at steps that all have sent.
`plan_joins` runs under the store's lock, `join_parts` inside the commit's transaction, after the rows of the
parts are in. All is derived from these rows, so a restart needs no state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from .catalog import Catalog
from .edge import Pending
from .rank_scalars import MOST_RANKS
from .tensors import Columns, insert_columns, without_masks
from .timelines import SCALAR

PART: Final = "grad_square_part"
WHOLE: Final = "grad_norm_whole"
CLOCKS_APART_S: Final = 1.0
"""Seconds by which hosts' clocks may differ."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Join:
    """Ranks of a sharded model, and the steps of which a part has just come."""

    run: str
    timeline: int
    """Of the lowest rank."""
    series: int
    """Of the whole norm."""
    parts: tuple[int, ...]
    """Series of the parts, the lowest rank's first."""
    timelines: tuple[int, ...]
    """That have the parts."""
    steps: Ints
    """Distinct, ascending."""


def plan_joins(catalog: Catalog, pending: Sequence[Pending]) -> list[Join]:
    """Return what a commit has to put together; gives the series of whole norms their numbers."""
    steps: dict[int, list[Ints]] = defaultdict(list)
    for block in (block for item in pending for block in item.scalars):
        part = catalog.timelines.find_series(block.timeline, SCALAR, PART)
        if part is not None:
            steps[block.timeline].append(block.step[block.series == part])
    groups: dict[tuple[str, tuple[int, ...]], list[Ints]] = defaultdict(list)
    for (run, rank), timeline in catalog.timelines.with_scalars(steps).items():
        groups[run, sharded_over(catalog, run, rank)] += steps[timeline]
    joins = (_plan(catalog, run, ranks, np.unique(np.concatenate(s))) for (run, ranks), s in groups.items())
    return [join for join in joins if join is not None and len(join.steps)]


def sharded_over(catalog: Catalog, run: str, rank: int) -> tuple[int, ...]:
    """Return the ranks that hold a model together with this one; empty where it is not sharded."""
    found = catalog.newest_layout(run, rank)
    ranks = tuple(found[1].sharded_over) if found else ()
    return ranks if rank in ranks and len(ranks) <= MOST_RANKS else ()


def whole_series(catalog: Catalog, run: str, rank: int) -> tuple[int, int] | None:
    """Return timeline and series of the whole norm that a rank has a part in; None where there is none."""
    ranks = sharded_over(catalog, run, rank)
    timeline = catalog.timelines.of_scalars(run, ranks[0]) if ranks else None
    series = None if timeline is None else catalog.timelines.find_series(timeline, SCALAR, WHOLE)
    return None if timeline is None or series is None else (timeline, series)


def _plan(catalog: Catalog, run: str, ranks: tuple[int, ...], steps: Ints) -> Join | None:
    timelines = [catalog.timelines.of_scalars(run, rank) for rank in ranks]
    parts = [None if t is None else catalog.timelines.find_series(t, SCALAR, PART) for t in timelines]
    known = tuple(part for part in parts if part is not None)
    having = tuple(timeline for timeline in timelines if timeline is not None)
    if not parts or timelines[0] is None or len(known) < len(parts):
        return None
    whole = catalog.timelines.add_series(timelines[0], SCALAR, WHOLE)
    return None if whole is None else Join(run, timelines[0], whole, known, having, steps)


def join_parts(database: duckdb.DuckDBPyConnection, join: Join) -> Ints:
    """Write the whole norms of the steps of which all parts are there; return these steps."""
    rows = _fetch_parts(database, join)
    norms = whole_norms(rows, join)
    if len(norms["step"]):
        query = "DELETE FROM scalar_raw WHERE timeline = ? AND series = ? AND list_contains(?, step)"
        database.execute(query, [join.timeline, join.series, norms["step"].tolist()])
        insert_columns(database, "scalar_raw", norms)
    return norms["step"]


def _fetch_parts(database: duckdb.DuckDBPyConnection, join: Join) -> Columns:
    query = """SELECT series, step, incarnation, seq, time, value FROM scalar_raw
        WHERE step BETWEEN $low AND $high AND list_contains($parts, series) AND NOT superseded"""
    bounds = {"low": int(join.steps[0]), "high": int(join.steps[-1])}
    rows = without_masks(database.execute(query, {**bounds, "parts": list(join.parts)}).fetchnumpy())
    wanted = np.isin(rows["step"], join.steps)
    return {name: column[wanted] for name, column in rows.items()}


def whole_norms(rows: Columns, join: Join) -> Columns:
    """Add up the parts of each step that has all of them, of one start of the training.

    A part that was measured before another's rank had started is of a start before.
    """
    order = np.lexsort((rows["series"] != join.parts[0], rows["step"]))
    rows = {name: column[order] for name, column in rows.items()}
    first = np.flatnonzero(np.r_[True, rows["step"][1:] != rows["step"][:-1]]) if len(order) else order
    count = np.diff(np.r_[first, len(order)])
    if len(first):
        earliest = np.minimum.reduceat(rows["time"], first)
        newest_start = np.maximum.reduceat(rows["incarnation"], first) / 1e9
        with np.errstate(invalid="ignore"):
            norm = np.sqrt(np.add.reduceat(rows["value"], first))
        is_whole = (count == len(join.parts)) & (earliest >= newest_start - CLOCKS_APART_S)
        first, norm = first[is_whole], norm[is_whole]
    else:
        norm = np.empty(0)
    lead = {name: rows[name][first] for name in ("step", "incarnation", "seq", "time")}
    return {
        "timeline": np.full(len(first), join.timeline, np.int64),
        "series": np.full(len(first), join.series, np.int64),
        "step": lead["step"],
        "incarnation": lead["incarnation"],
        "seq": lead["seq"],
        "superseded": np.zeros(len(first), np.bool_),
        "time": lead["time"],
        "value": norm,
    }
