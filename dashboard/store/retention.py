"""Removes raw rows that have become old, and knows where raw rows below the floor still exist.

Called by `DuckStore.commit` now and then, and by `buckets.py`, inside the commit's transaction, so that a
crash leaves either state. Below a timeline's `raw_floor` raw rows exist only in *kept* ranges: around events,
and where a resumed run has written old steps again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb

from .pyramid import FACTOR, Ranges, join_ranges, uncovered
from .timelines import LAYER, MODULE, PARAMETER, SCALAR

RAW_STEPS: Final = 20_000
"""Newest steps whose raw rows stay."""
EVENT_STEPS: Final = 200
"""Steps on either side of an event whose raw rows stay."""
SLACK_STEPS: Final = 2_000
"""Work is done once this many steps are too old, not for every step."""
MOST_STEPS: Final = 16_000
"""Most steps removed at once, so that a commit stays short; the next round goes on."""
RESIDUE: Final = 0
"""Level of the pooled rows that stand for raw rows removed before their steps were written again."""


def kinds_of(is_scalar: bool) -> tuple[str, ...]:
    """Return the prefixes of the tables that hold a timeline's rows."""
    return (SCALAR,) if is_scalar else (LAYER, PARAMETER, MODULE)


def kept_ranges(database: duckdb.DuckDBPyConnection, timeline: int) -> Ranges:
    """Return where raw rows exist below the floor: disjoint, ascending, joined where they touch."""
    query = "SELECT first_step, end_step FROM kept WHERE timeline = ? ORDER BY first_step"
    return join_ranges(database.execute(query, [timeline]).fetchall())


def keep_rewritten(
    database: duckdb.DuckDBPyConnection, timeline: int, *, first: int, end: int, is_scalar: bool
) -> None:
    """Prepare old buckets `[first, end)`, whose raw rows are gone, for steps that are written again.

    Their pooled rows are put by as residue, once; from then on residue and raw rows together say everything.
    """
    for start, stop in uncovered(kept_ranges(database, timeline), first, end):
        for kind in kinds_of(is_scalar):
            _put_by(database, kind, timeline, start, stop)
        database.execute("INSERT INTO kept VALUES (?,?,?,true)", [timeline, start, stop])


def _put_by(database: duckdb.DuckDBPyConnection, kind: str, timeline: int, first: int, end: int) -> None:
    database.execute(
        f"""INSERT INTO {kind}_pooled SELECT * REPLACE ({RESIDUE}::BIGINT AS level) FROM {kind}_pooled
        WHERE timeline = ? AND level = {FACTOR} AND step >= ? AND step < ?""",
        [timeline, first, end],
    )


def remove_old_rows(database: duckdb.DuckDBPyConnection, *, raw_steps: int = RAW_STEPS) -> None:
    """Remove raw rows of every timeline that has more than `raw_steps` + slack of them."""
    rows = database.execute(
        """SELECT timeline, raw_floor, max_step, first_step, run, rank, octet_length(digest) = 0
        FROM progress JOIN timelines USING (timeline) WHERE max_step - greatest(raw_floor, first_step) > ?""",
        [raw_steps + min(SLACK_STEPS, raw_steps)],
    ).fetchall()
    for timeline, floor, max_step, first_step, run, rank, is_scalar in rows:
        start = max(floor, first_step)
        target = min(max_step - raw_steps, start + MOST_STEPS) // FACTOR * FACTOR
        rewritten = database.execute(
            "DELETE FROM kept WHERE timeline = ? AND rewritten RETURNING first_step, end_step", [timeline]
        ).fetchall()
        candidates = join_ranges(sorted([*rewritten, (floor, target)]))
        for first, end in _around_events(database, run, rank, candidates):
            database.execute("INSERT INTO kept VALUES (?,?,?,false)", [timeline, first, end])
        for kind in kinds_of(is_scalar):
            _remove(database, f"{kind}_raw", timeline, target, "true")
            _remove(database, f"{kind}_pooled", timeline, target, f"level = {RESIDUE}")
        database.execute("UPDATE progress SET raw_floor = ? WHERE timeline = ?", [target, timeline])


def _around_events(
    database: duckdb.DuckDBPyConnection, run: str, rank: int, candidates: Sequence[tuple[int, int]]
) -> Ranges:
    """Return the parts of the candidate ranges near an event of the rank, in whole buckets."""
    query = "SELECT DISTINCT step FROM events WHERE run = ? AND rank = ? ORDER BY step"
    windows = join_ranges(
        ((step - EVENT_STEPS) // FACTOR * FACTOR, (step + EVENT_STEPS) // FACTOR * FACTOR + FACTOR)
        for (step,) in database.execute(query, [run, rank]).fetchall()
    )
    return [
        (max(first, low), min(end, high))
        for first, end in candidates
        for low, high in windows
        if max(first, low) < min(end, high)
    ]


def _remove(
    database: duckdb.DuckDBPyConnection, table: str, timeline: int, target: int, condition: str
) -> None:
    database.execute(
        f"""DELETE FROM {table} WHERE timeline = $timeline AND step < $target AND {condition} AND NOT EXISTS (
            SELECT 1 FROM kept WHERE kept.timeline = $timeline
            AND {table}.step >= kept.first_step AND {table}.step < kept.end_step)""",
        {"timeline": timeline, "target": target},
    )
