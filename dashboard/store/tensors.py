"""Rows of tensor tables: one blob of float32 per step and statistic, packed, fetched and merged.

Used by `writer.py` and `aging.py` on the writer's connection and by `queries.py` on a reader's cursor.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt

from .odd_rows import OddRows
from .pyramid import POOLED, Flags, Floats, Steps, pool_rows
from .timelines import LAYER, MODULE, PARAMETER

Columns = dict[str, npt.NDArray[Any]]
RAW_TABLES: Final = {LAYER: "layer_raw", PARAMETER: "parameter_raw", MODULE: "module_raw"}
POOLED_TABLES: Final = {LAYER: "layer_pooled", PARAMETER: "parameter_pooled", MODULE: "module_pooled"}
_FEW_ROWS: Final = 8
_MOST_COUNTERS: Final = 4
"""For each row: where so many places can have one, they are counted, which takes a tenth of sorting them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRows:
    """Rows of one series, ascending in step."""

    timeline: int
    """That the series belongs to; a series has one."""
    series: int
    step: Steps
    incarnation: Steps
    """-1 for pooled rows."""
    seq: Steps
    values: Floats
    """(rows, width)."""
    flags: Flags | None
    """(rows, width); None when every value was measured and is finite."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the committed part of a timeline reaches."""

    first_step: int
    max_step: int
    raw_floor: int
    """Raw rows below this step may have been removed."""


def among(timelines: Sequence[int]) -> str:
    """Return the condition for rows of these timelines, of which there must be one."""
    if len(timelines) == 1:
        return f"timeline = {int(timelines[0])}"
    listed = ", ".join(str(int(timeline)) for timeline in timelines)
    # The bounds let DuckDB pass over row groups; its IN alone does not always.
    return f"timeline BETWEEN {min(timelines)} AND {max(timelines)} AND timeline IN ({listed})"


def read_progress(database: duckdb.DuckDBPyConnection, timelines: Sequence[int]) -> dict[int, Progress]:
    """Return how far timelines are committed; without those where nothing is, or whose row is odd."""
    query = """SELECT timeline, first_step, max_step, raw_floor FROM progress
        WHERE timeline IN (SELECT unnest(?::BIGINT[]))"""
    rows = database.execute(query, [list(timelines)]).fetchall()
    return {row[0]: Progress(*row[1:]) for row in rows if None not in row}


def fetch_rows(
    database: duckdb.DuckDBPyConnection,
    kind: str,
    timelines: Sequence[int],
    *,
    level: int,
    first: int,
    end: int,
    series: int | None = None,
    odd: OddRows | None = None,
) -> list[SeriesRows]:
    """Read the rows of one level in `[first, end)`, of one series or of all of these timelines.

    Rows whose bytes have another length than those of their series are left out, and given to `odd`.
    """
    values: list[int] = [first, end]
    if level == 1:
        chosen, table, extra = "incarnation, seq", RAW_TABLES[kind], "NOT superseded"
    else:
        chosen, table, extra = "-1 AS incarnation, -1 AS seq", POOLED_TABLES[kind], "level = ?"
        values.append(level)
    if series is not None:
        extra += " AND series = ?"
        values.append(series)
    fetched = database.execute(
        f"SELECT timeline, series, step, {chosen}, data, flags FROM {table} "
        f"WHERE {among(timelines)} AND step >= ? AND step < ? AND {extra}",
        values,
    ).fetchnumpy()
    return split_series({name: np.asarray(column) for name, column in fetched.items()}, odd)


def split_series(rows: Columns, odd: OddRows | None) -> list[SeriesRows]:
    """Group fetched rows by series, each ascending in step."""
    if not len(rows["series"]):
        return []
    order = np.lexsort((rows["step"], rows["series"]))
    rows = {name: column[order] for name, column in rows.items()}
    bounds = [0, *(np.flatnonzero(np.diff(rows["series"])) + 1).tolist(), len(order)]
    result = []
    for start, end in itertools.pairwise(bounds):
        part = {name: column[start:end] for name, column in rows.items()}
        fitting = _fitting(part["data"].tolist(), part["flags"].tolist())
        if fitting is not None:
            if odd is not None:
                for step in part["step"][~fitting].tolist():
                    odd.add("statistics", f"{part['series'][0]} {step}")
            part = {name: column[fitting] for name, column in part.items()}
            if not fitting.any():
                continue
        values, flags = unpack_blobs(part["data"].tolist(), part["flags"].tolist())
        result.append(
            SeriesRows(
                timeline=int(part["timeline"][0]),
                series=int(part["series"][0]),
                step=part["step"],
                incarnation=part["incarnation"].astype(np.int64),
                seq=part["seq"].astype(np.int64),
                values=values,
                flags=flags,
            )
        )
    return result


def _fitting(data: list[Any], flags: list[Any]) -> npt.NDArray[np.bool_] | None:
    """Return which rows have the length that most of them have; None where all do."""
    sizes, marks = list(map(_size, data)), [max(_size(mark), 0) for mark in flags]
    common = Counter(sizes)
    size = max(common, key=lambda one: (one > 0 and one % 4 == 0, common[one]))
    if len(common) == 1 and size > 0 and size % 4 == 0 and {0, size // 4}.issuperset(marks):
        return None
    is_size = size > 0 and size % 4 == 0
    fits = [
        is_size and one == size and mark in (0, size // 4) for one, mark in zip(sizes, marks, strict=True)
    ]
    return np.array(fits, np.bool_)


def _size(blob: Any) -> int:
    """Return the bytes of a blob, as `fetchnumpy` gives it; -1 of what is none."""
    return len(blob) if isinstance(blob, bytes | bytearray) else -1


def unpack_blobs(data: list[bytes], flags: list[bytes]) -> tuple[Floats, Flags | None]:
    """Return (rows, width) values, and flags unless every row is measured and finite."""
    values = np.frombuffer(b"".join(data), dtype="<f4").reshape(len(data), -1)
    if not any(flags):
        return values, None
    full = b"\1" * values.shape[1]
    joined = b"".join(row or full for row in flags)
    return values, np.frombuffer(joined, dtype=np.uint8).reshape(len(data), -1)


def group_by_series(rows: Iterable[SeriesRows]) -> list[SeriesRows]:
    """Merge several reads so that every series stands once."""
    grouped: dict[int, list[SeriesRows]] = defaultdict(list)
    for row in rows:
        grouped[row.series].append(row)
    return [merge_rows(parts) for parts in grouped.values()]


def merge_rows(parts: Sequence[SeriesRows]) -> SeriesRows:
    """Merge reads of one series: of raw rows of one step the newest stays, pooled rows all stay.

    Newest is the largest incarnation, then the last to arrive. Rows of another width than the last part's,
    which a whole series of odd rows has, are left out.
    """
    parts = [part for part in parts if part.values.shape[1] == parts[-1].values.shape[1]]
    if len(parts) == 1:
        return parts[0]
    step, incarnation, seq = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "incarnation", "seq")
    )
    order = np.lexsort((seq, incarnation, step))
    last = np.r_[step[order][1:] != step[order][:-1], True]
    chosen = order[last | (incarnation[order] < 0)]
    flags = None
    if any(part.flags is not None for part in parts):
        full = [np.ones(p.values.shape, np.uint8) if p.flags is None else p.flags for p in parts]
        flags = np.concatenate(full)[chosen]
    return SeriesRows(
        timeline=parts[0].timeline,
        series=parts[0].series,
        step=step[chosen],
        incarnation=incarnation[chosen],
        seq=seq[chosen],
        values=np.concatenate([part.values for part in parts])[chosen],
        flags=flags,
    )


def pool_series(rows: SeriesRows, level: int) -> SeriesRows:
    """Return rows pooled to buckets of `level` steps, by maximum."""
    own = None if rows.flags is None else rows.flags & ~np.uint8(POOLED)
    group, values, flags = pool_rows(rows.step // level, rows.values, own)
    none = np.full(len(group), -1, np.int64)
    return SeriesRows(
        timeline=rows.timeline,
        series=rows.series,
        step=group * level,
        incarnation=none,
        seq=none,
        values=values,
        flags=flags,
    )


def chosen_rows(rows: SeriesRows, which: npt.NDArray[Any]) -> SeriesRows:
    """Return the rows of a mask, or of positions in this order."""
    return SeriesRows(
        timeline=rows.timeline,
        series=rows.series,
        step=rows.step[which],
        incarnation=rows.incarnation[which],
        seq=rows.seq[which],
        values=rows.values[which],
        flags=None if rows.flags is None else rows.flags[which],
    )


def value_blobs(values: npt.NDArray[Any]) -> Iterable[bytes]:
    """Return one blob per row of a (rows, width) array."""
    whole, width = values.tobytes(), values.shape[1] * values.itemsize
    return (whole[index * width : (index + 1) * width] for index in range(len(values)))


def flag_blobs(flags: Flags | None, count: int) -> Iterable[bytes]:
    """Return one blob per row, empty where every value was measured and is finite."""
    if flags is None:
        return (b"" for _ in range(count))
    plain = (flags == 1).all(axis=1).tolist()
    return (b"" if clean else blob for clean, blob in zip(plain, value_blobs(flags), strict=True))


def objects(blobs: Iterable[bytes]) -> npt.NDArray[Any]:
    """Return an object array, which is how DuckDB takes blobs."""
    items = list(blobs)
    result = np.empty(len(items), dtype=object)
    result[:] = items
    return result


def insert_columns(database: duckdb.DuckDBPyConnection, table: str, columns: Columns) -> None:
    """Append equal-length columns, given in the table's column order. NaN stays NaN."""
    if few := _few_cells(columns.values()):
        mark = f"({','.join('?' * len(columns))})"
        marks = ", ".join([mark] * (len(few) // len(columns)))
        database.execute(f"INSERT INTO {table} VALUES {marks}", few)
        return
    # DuckDB takes a numpy NaN for NULL.
    chosen = [f"coalesce({n}, 'nan')" if c.dtype.kind == "f" else n for n, c in columns.items()]
    database.register("incoming", columns)
    database.execute(f"INSERT INTO {table} SELECT {', '.join(chosen)} FROM incoming")
    database.unregister("incoming")


def replace_columns(
    database: duckdb.DuckDBPyConnection, table: str, columns: Columns, *, keys: Sequence[str]
) -> None:
    """Insert rows in place of those of the same `keys`; see `insert_columns`."""
    if few := _few_cells([columns[key] for key in keys]):
        same = f"({' AND '.join(f'{key} = ?' for key in keys)})"
        database.execute(f"DELETE FROM {table} WHERE {' OR '.join([same] * (len(few) // len(keys)))}", few)
    else:
        same = " AND ".join(f"{table}.{key} = incoming.{key}" for key in keys)
        database.register("incoming", columns)
        database.execute(f"DELETE FROM {table} USING incoming WHERE {same}")
        database.unregister("incoming")
    insert_columns(database, table, columns)


def _few_cells(columns: Collection[npt.NDArray[Any]]) -> list[Any]:
    """Return the cells of up to eight rows, row by row; none of more rows.

    Given as parameters, so many cost at most two thirds of a statement that reads arrays, one row a third.
    """
    if any(len(column) > _FEW_ROWS for column in columns):
        return []
    return [cell for row in zip(*(column.tolist() for column in columns), strict=True) for cell in row]


def without_masks(columns: Columns) -> Columns:
    """Return plain arrays: NULL, which only floating columns have, becomes NaN."""
    return {
        name: column.filled(np.nan)
        if isinstance(column, np.ma.MaskedArray) and column.mask.any()
        else np.asarray(column)
        for name, column in columns.items()
    }


def has_repeated(rows: Columns) -> bool:
    """Whether any two rows are of one series and step; that rarely is so, and is cheaper than the order."""
    series = rows["series"]
    if not len(series):
        return False
    steps = rows["step"] - rows["step"].min()
    known = np.unique(series)
    span = int(steps.max()) + 1
    if len(known) * span >= 2**63:
        return True
    keys = np.searchsorted(known, series) * span + steps
    if len(known) * span <= _MOST_COUNTERS * len(series):
        return bool(np.bincount(keys).max() > 1)
    keys.sort()
    return bool((keys[1:] == keys[:-1]).any())
