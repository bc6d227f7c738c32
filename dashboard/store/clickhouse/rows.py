"""`ClickRows`: the committed rows of a ClickHouse database.

A server shows each insert as it comes: a read asks first how far a timeline is, and leaves later steps out.
Rows of one key may be there several times until the server has merged them: the largest version counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ..histograms import KEPT
from ..odd_rows import OddRows
from ..pyramid import Piece, Ranges, Steps, join_ranges
from ..retention import RESIDUE
from ..rows import HistogramKey
from ..tensors import POOLED_TABLES, Columns, Progress, SeriesRows, has_repeated, objects, split_series
from .connection import Connections
from .numbers import among
from .said_rows import SaidRows
from .schema import GONE

RAW: Final = ("timeline", "series", "step", "incarnation", "seq", "time", "value")
POOLED: Final = (
    *("timeline", "series", "step", "version", "first", "time", "least", "mean", "most", "finite"),
    *("nans", "infs", "pooled"),
)
_COUNTS: Final = ("finite", "nans", "infs", "pooled")
"""Of steps in a bucket: half of their bytes would be zeros."""
WHOLE: Final = 0
"""Kind of a noted range below the floor: all raw rows are there."""
REWRITTEN: Final = 1
"""A run that was resumed writes there; what stands at level `RESIDUE` is there, too."""
REWRITTEN_EVENT: Final = 2
"""It has written there, around an event, and is beyond it."""
_NO_NUMBERS: Final[Steps] = np.empty(0, np.int64)


class ClickRows(SaidRows):
    """See `Rows` for what the methods mean.

    Args:
        database: of this thread's clients.
        progress: what was asked before in this view: later steps are not seen; None outside of one.
    """

    def __init__(self, database: Connections, progress: dict[int, Progress | None] | None = None) -> None:
        super().__init__(database)
        self._progress = progress

    # -- timelines

    def progress(self, timelines: Sequence[int]) -> dict[int, Progress]:
        """See `Rows.progress`."""
        known = self._progress if self._progress is not None else {}
        missing = [timeline for timeline in timelines if timeline not in known]
        found = known | self._read_progress(missing)
        if self._progress is not None:
            self._progress |= {timeline: found.get(timeline) for timeline in missing}
        return {timeline: at for timeline in timelines if (at := found.get(timeline)) is not None}

    def _read_progress(self, timelines: Sequence[int]) -> dict[int, Progress | None]:
        if not timelines:
            return {}
        floors = dict(
            self._database.rows(
                f"SELECT timeline, max(raw_floor) FROM floors WHERE {among(timelines)} GROUP BY timeline"
            )
        )
        query = f"""SELECT timeline, min(first_step), max(max_step) FROM progress WHERE {among(timelines)}
            GROUP BY timeline"""
        return {
            timeline: Progress(first, last, floors.get(timeline, 0))
            for timeline, first, last in self._database.rows(query)
        }

    def kept(self, timelines: Sequence[int]) -> dict[int, Ranges]:
        """See `Rows.kept`."""
        found: dict[int, Ranges] = {timeline: [] for timeline in timelines}
        if timelines:
            for timeline, ranges in self.noted(among(timelines)).items():
                found[timeline] = join_ranges((first, end) for first, end, _ in ranges)
        return found

    def noted(self, condition: str) -> dict[int, list[tuple[int, int, int]]]:
        """Return first step, end and kind of the ranges with raw rows below the floor, ascending."""
        query = f"""SELECT timeline, first_step, end_step, argMax(kind, version) AS newest FROM kept
            WHERE {condition} GROUP BY timeline, first_step, end_step HAVING newest != {GONE}
            ORDER BY timeline, first_step, end_step"""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for timeline, first, end, kind in self._database.rows(query):
            found.setdefault(timeline, []).append((first, end, kind))
        return found

    def _counted(self, rows: Columns, *, is_residue: bool) -> Columns:
        """Leave out raw rows below the floor that are pooled, or residue of ranges that have none."""
        if not len(rows["step"]):
            return rows
        timelines = np.unique(rows["timeline"]).tolist()
        floors = {timeline: at.raw_floor for timeline, at in self.progress(timelines).items()}
        floors = {
            timeline: floor
            for timeline, floor in floors.items()
            if floor and bool((rows["step"][rows["timeline"] == timeline] < floor).any())
        }
        noted = self.noted(among(list(floors))) if floors else {}
        counts = np.full(len(rows["step"]), not is_residue, np.bool_)
        for timeline, floor in floors.items():
            old = (rows["timeline"] == timeline) & (rows["step"] < floor)
            counts &= ~old
            for first, end, kind in noted.get(timeline, []):
                if not is_residue or kind != WHOLE:
                    counts |= old & (rows["step"] >= first) & (rows["step"] < end)
        return {name: column[counts] for name, column in rows.items()}

    def owners(
        self, timeline: int, kinds: Sequence[str], *, low: int, high: int
    ) -> tuple[Steps, npt.NDArray[np.int64]]:
        """See `Rows.owners`."""
        query = f"""SELECT step, max(incarnation) FROM frames WHERE timeline = {timeline}
            AND step >= {low} AND step <= {high} GROUP BY step"""
        found = self._database.columns(query, ("step", "newest"))
        return found["step"].astype(np.int64), found["newest"].astype(np.int64)

    def _shown(self, rows: Columns, *, is_ordered: bool = True) -> Columns:
        """Leave one row of each series and step, of the start that it belongs to; in order, if asked."""
        if not len(rows["step"]):
            return rows
        if is_ordered or has_repeated(rows):
            order = np.lexsort([rows[name] for name in ("seq", "incarnation", "step", "series", "timeline")])
            rows = {name: column[order] for name, column in rows.items()}
            last = np.r_[_changes(rows, ("timeline", "series", "step"))[1:], True]
            rows = {name: column[last] for name, column in rows.items()}
        for timeline in self._restarted(rows):
            mine = rows["timeline"] == timeline
            low, high = int(rows["step"][mine].min()), int(rows["step"][mine].max())
            steps, newest = self.owners(timeline, (), low=low, high=high)
            order = np.argsort(steps)
            steps, newest = steps[order], newest[order]
            place = np.minimum(np.searchsorted(steps, rows["step"]), max(len(steps) - 1, 0))
            is_older = mine & (steps[place] == rows["step"]) & (rows["incarnation"] < newest[place])
            rows = {name: column[~is_older] for name, column in rows.items()}
        return rows

    def _restarted(self, rows: Columns) -> list[int]:
        """Return the timelines of rows of which several starts have frames thereabouts."""
        low, high = int(rows["step"].min()), int(rows["step"].max())
        query = f"""SELECT timeline, min(incarnation) AS oldest, max(incarnation) AS newest FROM frames
            WHERE {among(np.unique(rows["timeline"]).tolist())} AND step >= {low} AND step <= {high}
            GROUP BY timeline HAVING oldest != newest"""
        return [row[0] for row in self._database.rows(query)]

    # -- scalars

    def scalars(self, timeline: int, series: Sequence[int], piece: Piece) -> Columns:
        """See `Rows.scalars`."""
        first, end = piece.first, piece.end
        if piece.level == 1:
            rows = as_pooled(self.raw_scalars([timeline], series, first=first, end=end))
        else:
            rows = _named(self.pooled_scalars([timeline], series, level=piece.level, first=first, end=end))
        return {name: column for name, column in rows.items() if name != "timeline"}

    def raw_scalars(
        self,
        timelines: Sequence[int],
        series: Sequence[int] | None,
        *,
        first: int,
        end: int,
        is_old: bool = True,
        names: Sequence[str] = RAW,
    ) -> Columns:
        """Return raw rows as shown: timeline, series, step, incarnation, seq, time, value.

        Where it is known that nothing has been removed there, it is not old. With fewer names they come in no
        order.
        """
        chosen = "" if series is None else f"AND {among(series, 'series')}"
        query = _of_both("scalar", ", ".join(names), timelines, first, end, chosen)
        found = self._database.columns(query, names)
        found = self._counted(found, is_residue=False) if is_old else found
        return self._shown(found, is_ordered=names == RAW)

    def pooled_scalars(
        self,
        timelines: Sequence[int],
        series: Sequence[int] | None,
        *,
        level: int,
        first: int,
        end: int,
        is_all: bool = False,
        names: Sequence[str] = POOLED,
    ) -> Columns:
        """Return the newest version of each row of a level, without those that stand for nothing.

        Residue counts where a run that was resumed has written; with `is_all` what is left of others, too.
        With fewer names they come in no order.
        """
        chosen = "" if series is None else f"AND {among(series, 'series')}"
        columns = ", ".join(f"toUInt32({name})" if name in _COUNTS else name for name in names)
        query = f"""SELECT {columns} FROM scalar_pooled WHERE {among(timelines)}
            AND level = {level} AND step >= {first} AND step < {end} {chosen}"""
        rows = self._database.columns(query, names)
        rows |= {name: rows[name].astype(np.int64) for name in _COUNTS}
        if names == POOLED or has_repeated(rows):
            rows = _newest_version(rows)
        rows = {name: column[rows["pooled"] > 0] for name, column in rows.items()}
        return self._counted(rows, is_residue=True) if level == RESIDUE and not is_all else rows

    def rank_scalars(self, parts: Sequence[Sequence[int]], timelines: Sequence[int]) -> Columns:
        """See `Rows.rank_scalars`."""
        found: list[Columns] = []
        alike: dict[tuple[int, int, int, int], list[int]] = {}
        for series, level, first, end, width in zip(*parts, strict=True):
            alike.setdefault((level, first, end, width), []).append(series)
        for (level, first, end, width), series_alike in alike.items():
            if level == 1:
                names = tuple(name for name in RAW if name != "time")
                raw = self.raw_scalars(timelines, series_alike, first=first, end=end, names=names)
                rows = as_pooled(raw | {"time": np.zeros(len(raw["step"]))})
                if width > 1:
                    rows["incarnation"] = rows["seq"] = np.full(len(rows["step"]), -1, np.int64)
            else:
                names = tuple(name for name in POOLED if name not in ("time", "least"))
                pooled = self.pooled_scalars(
                    timelines, series_alike, level=level, first=first, end=end, names=names
                )
                unknown = np.full(len(pooled["step"]), np.nan)
                rows = _named(pooled | {"time": unknown, "least": unknown})
            found.append(rows)
        names = ("series", "step", "incarnation", "seq", "max", "mean", "finite", "nan", "inf")
        empty = {name: np.empty(0, np.float64 if name in ("max", "mean") else np.int64) for name in names}
        joined = {name: np.concatenate([empty[name], *(rows[name] for rows in found)]) for name in names}
        joined["high"] = joined.pop("max")
        return joined

    # -- tensors

    def tensors(
        self, kind: str, timeline: int, *, series: int, level: int, first: int, end: int, odd: OddRows
    ) -> list[SeriesRows]:
        """See `Rows.tensors`."""
        return self.tensor_rows(kind, [timeline], series=series, level=level, first=first, end=end, odd=odd)

    def tensor_rows(
        self,
        kind: str,
        timelines: Sequence[int],
        *,
        level: int,
        first: int,
        end: int,
        series: int | None = None,
        odd: OddRows | None = None,
        is_old: bool = True,
        is_all: bool = False,
    ) -> list[SeriesRows]:
        """Return the rows of one series or of all, each series ascending in step.

        `is_old` and `is_all` are as for scalars.
        """
        is_raw = level == 1
        order = "incarnation, seq" if is_raw else "version, version"
        chosen = "" if series is None else f"AND series = {series}"
        chosen += "" if is_raw else f" AND level = {level}"
        columns = f"timeline, series, step, {order}, data, flags"
        query = f"""SELECT {columns} FROM {POOLED_TABLES[kind]}
            WHERE {among(timelines)} AND step >= {first} AND step < {end} {chosen}"""
        found = self._database.rows(
            _of_both(kind, columns, timelines, first, end, chosen) if is_raw else query
        )
        if not found:
            return []
        *numbers, data, flags = zip(*found, strict=True)
        names = ("timeline", "series", "step", "incarnation", "seq")
        rows: Columns = {
            name: np.array(column, np.int64) for name, column in zip(names, numbers, strict=True)
        }
        rows["data"], rows["flags"] = objects(data), objects(flags)
        if is_raw:
            rows = self._shown(self._counted(rows, is_residue=False) if is_old else rows)
        else:
            rows["version"] = rows["incarnation"]
            rows = _newest_version(rows)
            full = np.array([len(blob) > 0 for blob in rows["data"]], np.bool_)
            rows = {name: column[full] for name, column in rows.items()}
            rows["incarnation"] = rows["seq"] = np.full(len(rows["step"]), -1, np.int64)
            if level == RESIDUE and not is_all:
                rows = self._counted(rows, is_residue=True)
        return split_series(rows, odd)

    # -- histograms

    def histogram_keys(
        self, timeline: int, series: Sequence[int], *, first: int, end: int, most: int
    ) -> list[HistogramKey]:
        """See `Rows.histogram_keys`."""
        query = f"""SELECT incarnation, seq, series, at_step FROM (
            SELECT incarnation, seq, series, max(step) AS at_step FROM histograms
            WHERE {among(series, "series")} GROUP BY incarnation, seq, series
            ORDER BY incarnation DESC, seq DESC LIMIT {KEPT} BY series) AS newest
            WHERE at_step >= {first} AND at_step < {end}
            ORDER BY incarnation DESC, seq DESC LIMIT {most}"""
        return [(row[0], row[1], row[2], row[3]) for row in self._database.rows(query)]

    def histograms(self, timeline: int, keys: Sequence[HistogramKey]) -> dict[HistogramKey, bytes | None]:
        """See `Rows.histograms`."""
        wanted = ", ".join(f"({incarnation}, {seq}, {series})" for incarnation, seq, series, _ in keys)
        query = f"""SELECT incarnation, seq, series, step, data FROM histograms
            WHERE {among(sorted({key[2] for key in keys}), "series")}
            AND (incarnation, seq, series) IN ({wanted})"""
        return {(row[0], row[1], row[2], row[3]): row[4] for row in self._database.rows(query)}


def _of_both(kind: str, columns: str, timelines: Sequence[int], first: int, end: int, chosen: str) -> str:
    """The query of raw rows, whether their block is there or they were kept when it was dropped."""
    where = f"WHERE {among(timelines)} AND step >= {first} AND step < {end} {chosen}"
    return f"SELECT {columns} FROM {kind}_raw {where} UNION ALL SELECT {columns} FROM {kind}_kept {where}"


def _changes(rows: Columns, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Whether each row has another key than the one before it."""
    count = len(rows[names[0]])
    result: npt.NDArray[np.bool_] = np.ones(count, np.bool_)
    if count:
        result[1:] = False
        for name in names:
            result[1:] |= rows[name][1:] != rows[name][:-1]
    return result


def _newest_version(rows: Columns) -> Columns:
    order = np.lexsort([rows[name] for name in ("version", "step", "series", "timeline")])
    rows = {name: column[order] for name, column in rows.items()}
    last = np.r_[_changes(rows, ("timeline", "series", "step"))[1:], True] if len(order) else order > 0
    return {name: column[last] for name, column in rows.items()}


def as_pooled(raw: Columns) -> Columns:
    """Return raw rows in the form of pooled ones, each of one step."""
    value = raw["value"].astype(np.float64)
    rows = {name: raw[name] for name in ("timeline", "series", "step", "time", "incarnation", "seq")}
    rows |= {"min": value, "mean": value, "max": value}
    for name, test in (("finite", np.isfinite), ("nan", np.isnan), ("inf", np.isinf)):
        rows[name] = test(value).astype(np.int64)
    rows["pooled"] = np.ones(len(value), np.int64)
    return rows


def _named(pooled: Columns) -> Columns:
    """Return pooled rows under the names that reads use; their step is the first that was measured."""
    none = np.full(len(pooled["step"]), -1, np.int64)
    rows = {name: pooled[name] for name in ("timeline", "series", "time", "mean", "finite", "pooled")}
    rows |= {"step": pooled["first"], "min": pooled["least"], "max": pooled["most"]}
    rows |= {"nan": pooled["nans"], "inf": pooled["infs"], "incarnation": none, "seq": none}
    return rows
