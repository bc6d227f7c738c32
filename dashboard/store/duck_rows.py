"""`DuckRows`: the committed rows of a DuckDB file, as one transaction's cursor sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt

from .marks import read_marks
from .notes import read_notes
from .odd_rows import OddRows
from .owners import newest_query
from .protocol import RunMark, StepNote
from .pyramid import Piece, Ranges, Steps, join_ranges
from .rows import HistogramKey
from .tensors import Columns, Progress, SeriesRows, fetch_rows, read_progress, without_masks

_DOCUMENT: Final = "run, rank, incarnation, kind, key, step, time, data"


class DuckRows:
    """See `Rows` for what the methods mean.

    Args:
        cursor: inside a transaction.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.cursor = cursor

    def _all(self, query: str, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = self.cursor.execute(query, values).fetchall()
        return found

    def progress(self, timelines: Sequence[int]) -> dict[int, Progress]:
        """See `Rows.progress`."""
        return read_progress(self.cursor, timelines) if len(timelines) else {}

    def kept(self, timelines: Sequence[int]) -> dict[int, Ranges]:
        """See `Rows.kept`."""
        found: dict[int, Ranges] = {timeline: [] for timeline in timelines}
        query = """SELECT timeline, first_step, end_step FROM kept WHERE list_contains(?, timeline)
            ORDER BY first_step"""
        for timeline, first, end in self._all(query, [list(timelines)]):
            found[timeline].append((first, end))
        return {timeline: join_ranges(ranges) for timeline, ranges in found.items()}

    def owners(
        self, timeline: int, kinds: Sequence[str], *, low: int, high: int
    ) -> tuple[Steps, npt.NDArray[np.int64]]:
        """See `Rows.owners`."""
        values = {"timeline": timeline, "low": low, "high": high}
        found = self.cursor.execute(newest_query(kinds), values).fetchnumpy()
        return np.asarray(found["step"], np.int64), np.asarray(found["newest"], np.int64)

    def scalars(self, timeline: int, series: Sequence[int], piece: Piece) -> Columns:
        """See `Rows.scalars`."""
        marks = ",".join("?" * len(series))
        if piece.level == 1:
            query = f"""SELECT series, step, time, incarnation, seq,
                value AS min, value AS mean, value AS max,
                isfinite(value)::BIGINT AS finite, isnan(value)::BIGINT AS nan, isinf(value)::BIGINT AS inf,
                1::BIGINT AS pooled
                FROM scalar_raw WHERE timeline = ? AND step >= ? AND step < ? AND NOT superseded
                AND series IN ({marks})"""
            values = [timeline, piece.first, piece.end, *series]
        else:
            query = f"""SELECT series, step, time, -1::BIGINT AS incarnation, -1::BIGINT AS seq,
                min, mean, max, finite, nan, inf, pooled
                FROM scalar_pooled WHERE timeline = ? AND step >= ? AND step < ? AND level = ?
                AND series IN ({marks})"""
            values = [timeline, piece.first, piece.end, piece.level, *series]
        return without_masks(self.cursor.execute(query, values).fetchnumpy())

    def tensors(
        self, kind: str, timeline: int, *, series: int, level: int, first: int, end: int, odd: OddRows
    ) -> list[SeriesRows]:
        """See `Rows.tensors`."""
        return fetch_rows(
            self.cursor, kind, [timeline], level=level, first=first, end=end, series=series, odd=odd
        )

    def rank_scalars(self, parts: Sequence[Sequence[int]], timelines: Sequence[int]) -> Columns:
        """See `Rows.rank_scalars`."""
        raw, pooled = _bounds(parts, is_raw=True), _bounds(parts, is_raw=False)
        level = min((level for level in parts[1] if level != 1), default=0)
        rows = self.cursor.execute(_RANK_SCALARS, [*parts, *raw, *pooled, level]).fetchnumpy()
        return without_masks({name: column for name, column in rows.items() if name != "width"})

    def histogram_keys(
        self, timeline: int, series: Sequence[int], *, first: int, end: int, most: int
    ) -> list[HistogramKey]:
        """See `Rows.histogram_keys`."""
        marks = ",".join("?" * len(series))
        query = f"""SELECT incarnation, seq, series, step FROM histograms
            WHERE series IN ({marks}) AND step >= ? AND step < ?
            ORDER BY incarnation DESC, seq DESC LIMIT {most}"""
        return self._all(query, [*series, first, end])

    def histograms(self, timeline: int, keys: Sequence[HistogramKey]) -> dict[HistogramKey, bytes | None]:
        """See `Rows.histograms`."""
        incarnations, numbers, series, _ = (sorted(set(part)) for part in zip(*keys, strict=True))
        query = """SELECT incarnation, seq, series, step, data FROM histograms WHERE list_contains(?, series)
            AND incarnation BETWEEN ? AND ? AND seq BETWEEN ? AND ?"""
        values = [series, incarnations[0], incarnations[-1], numbers[0], numbers[-1]]
        found = {row[:4]: row[4] for row in self._all(query, values)}
        return {key: found[key] for key in keys if key in found}

    def events(self, run: str, event_id: str | None = None) -> list[tuple[str, bytes | None]]:
        """See `Rows.events`."""
        query, values = "SELECT id, data FROM events WHERE run = ?", [run]
        if event_id is not None:
            query, values = f"{query} AND id = ?", [run, event_id]
        return self._all(query, values)

    def run_of_event(self, event_id: str) -> str | None:
        """See `Rows.run_of_event`."""
        row = self.cursor.execute("SELECT run FROM events WHERE id = ? LIMIT 1", [event_id]).fetchone()
        return None if row is None else str(row[0])

    def event_counts(self) -> list[tuple[str, str, int]]:
        """See `Rows.event_counts`."""
        query = "SELECT run, severity, count(*) FROM events GROUP BY run, severity"
        return self._all(query, [])

    def severities(self, run: str, event_id: str) -> list[str]:
        """See `Rows.severities`."""
        query = "SELECT severity FROM events WHERE run = ? AND id = ?"
        return [row[0] for row in self._all(query, [run, event_id])]

    def documents(self, run: str, kind: str) -> list[tuple[Any, ...]]:
        """See `Rows.documents`."""
        query = f"SELECT {_DOCUMENT} FROM documents WHERE run = ? AND kind = ?"
        return self._all(query, [run, kind])

    def document_kinds(self, run: str) -> list[str]:
        """See `Rows.document_kinds`."""
        query = "SELECT DISTINCT kind FROM documents WHERE run = ?"
        return [str(kind) for (kind,) in self._all(query, [run])]

    def document_sizes(self, run: str) -> list[tuple[Any, ...]]:
        """See `Rows.document_sizes`."""
        query = "SELECT run, rank, incarnation, kind, key, octet_length(data) FROM documents WHERE run = ?"
        return self._all(query, [run])

    def marks(self) -> dict[str, RunMark]:
        """See `Rows.marks`."""
        return read_marks(self.cursor)

    def notes(self, run: str) -> list[StepNote]:
        """See `Rows.notes`."""
        return read_notes(self.cursor, run)


_POOLED: Final = """min(step) AS step, max(incarnation) AS incarnation, max(seq) AS seq,
    max(high) FILTER (finite > 0) AS high,
    sum(mean * 1e-15 * finite) FILTER (finite > 0) / sum(finite) * 1e15 AS mean,
    sum(finite)::BIGINT AS finite, sum(nan)::BIGINT AS nan, sum(inf)::BIGINT AS inf"""
_RANK_SCALARS: Final = f"""
    WITH parts AS MATERIALIZED (
        SELECT unnest($1::BIGINT[]) AS series, unnest($2::BIGINT[]) AS level, unnest($3::BIGINT[]) AS first,
            unnest($4::BIGINT[]) AS last, unnest($5::BIGINT[]) AS width)
    SELECT series, {_POOLED}, width FROM (
        SELECT r.series, r.step, r.value AS high, r.value AS mean, isfinite(r.value)::BIGINT AS finite,
            isnan(r.value)::BIGINT AS nan, isinf(r.value)::BIGINT AS inf, width, -1 AS incarnation, -1 AS seq
        FROM scalar_raw r JOIN parts p ON r.series = p.series
            AND p.level = 1 AND p.width > 1 AND r.step >= p.first AND r.step < p.last
        WHERE NOT r.superseded AND r.step >= $6 AND r.step < $7
        UNION ALL
        SELECT r.series, r.step, r.max, r.mean, r.finite, r.nan, r.inf, width, -1, -1
        FROM scalar_pooled r JOIN parts p
            ON r.series = p.series AND r.level = p.level AND r.step >= p.first AND r.step < p.last
        WHERE r.step >= $8 AND r.step < $9 AND r.level >= $10)
    GROUP BY series, step // width, width
    UNION ALL BY NAME
    SELECT r.series, r.step, r.incarnation, r.seq, r.value AS high, r.value AS mean,
        isfinite(r.value)::BIGINT AS finite, isnan(r.value)::BIGINT AS nan, isinf(r.value)::BIGINT AS inf,
        width
    FROM scalar_raw r JOIN parts p ON r.series = p.series
        AND p.level = 1 AND p.width = 1 AND r.step >= p.first AND r.step < p.last
    WHERE NOT r.superseded AND r.step >= $6 AND r.step < $7"""
"""Pooled by the engine; where each column is a step there is nothing to pool."""


def _bounds(columns: Sequence[Sequence[int]], *, is_raw: bool) -> tuple[int, int]:
    """Return the first step and the end of all parts of a table: most of it need not be looked at."""
    _, levels, firsts, ends, _ = columns
    inside = [at for at, level in enumerate(levels) if (level == 1) == is_raw]
    return min((firsts[at] for at in inside), default=0), max((ends[at] for at in inside), default=0)
