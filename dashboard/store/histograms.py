"""Histograms in the database: written, trimmed to the newest, and read for one parameter, layer or module.

`insert_histograms` runs in a commit; `plan_histograms` under the store's lock, `read_histograms` with a
snapshot. A row holds those of all parameters or modules at one step: that is how they arrive and go.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from probe.wire.layer_values import Geometry
from probe.wire.magnitude_bins import BINS
from probe.wire.module_frames import HISTOGRAMS

from .catalog import Catalog
from .edge import HistogramRow
from .heatmaps import same_model
from .protocol import HistogramColumns, MagnitudeHistogram, StepRange
from .queries import Snapshot
from .rows import HistogramKey
from .tensors import Columns, insert_columns, objects
from .timelines import HISTOGRAM

KEPT: Final = 64
"""Newest histograms of a series that stay. With 2,000 tensors one is 0.5 MB, compressed a tenth of it (the
bins are mostly empty; zlib level 1 takes 2 ms)."""
MAX_LOOKED_AT: Final = 8
"""How far a read goes back for something that was not measured each time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One kind of histogram of a subject."""

    name: str
    timeline: int
    """Of the rank whose they are."""
    rows: dict[int, list[int]]
    """Series -> the rows that count together; one series for each layout that has the subject."""


def insert_histograms(database: duckdb.DuckDBPyConnection, rows: Sequence[HistogramRow]) -> None:
    """Write the newest of the rows and remove what they push out, inside the commit's transaction."""
    by_series: dict[int, list[HistogramRow]] = defaultdict(list)
    for row in rows:
        by_series[row.series].append(row)
    newest = [
        row
        for group in by_series.values()
        for row in sorted(group, key=lambda each: (each.incarnation, each.seq))[-KEPT:]
    ]
    if not newest:
        return
    columns: Columns = {
        "timeline": np.array([row.timeline for row in newest], np.int32),
        "series": np.array([row.series for row in newest], np.int32),
        "step": np.array([row.step for row in newest], np.int64),
        "incarnation": np.array([row.incarnation for row in newest], np.int64),
        "seq": np.array([row.seq for row in newest], np.int64),
        "data": objects(zlib.compress(row.data, 1) for row in newest),
    }
    insert_columns(database, "histograms", columns)
    for series in by_series:
        _trim(database, series)


def _trim(database: duckdb.DuckDBPyConnection, series: int) -> None:
    query = """SELECT incarnation, seq FROM histograms WHERE series = ?
        ORDER BY incarnation DESC, seq DESC LIMIT 1 OFFSET ?"""
    oldest = database.execute(query, [series, KEPT - 1]).fetchone()
    if oldest is not None:
        database.execute(
            "DELETE FROM histograms WHERE series = ? AND (incarnation < ? OR (incarnation = ? AND seq < ?))",
            [series, oldest[0], *oldest],
        )


def histogram_subjects(catalog: Catalog, run: str, rank: int) -> list[str]:
    """Return modules (or layers, while modules are unknown), each followed by its own parameters."""
    if not _timelines(catalog, run, rank):
        return []
    geometries = [catalog.layout(timeline)[1] for timeline in same_model(catalog, run, rank)]
    newest, modules = geometries[-1], next((g.modules for g in reversed(geometries) if g.modules), ())
    own = dict(zip(newest.layers, newest.parameters_of, strict=True))
    names: list[str] = []
    for name in dict.fromkeys((*modules, *newest.layers)):
        names += [name, *(newest.parameters[index] for index in own.get(name, ()))]
    return names


def histogram_mark(catalog: Catalog, run: str, rank: int) -> int | None:
    """Return a number that changes with every new histogram of the rank; None where there are none."""
    timelines = _timelines(catalog, run, rank)
    if not timelines:
        return None
    return hash(tuple(map(catalog.newest_histogram, timelines))) & (2**52 - 1)


def _timelines(catalog: Catalog, run: str, rank: int) -> list[int]:
    """Return those of the newest layout's model that have histograms."""
    return [
        timeline
        for timeline in same_model(catalog, run, rank)
        if catalog.timelines.series_names(timeline, HISTOGRAM)
    ]


def plan_histograms(catalog: Catalog, run: str, rank: int, *, subject: str) -> list[Wanted]:
    """Return what there may be of a parameter, layer or module, in the order of `HISTOGRAMS`."""
    timelines = _timelines(catalog, run, rank)
    wanted = []
    for name in HISTOGRAMS:
        rows = {}
        for timeline in timelines:
            series = catalog.timelines.find_series(timeline, HISTOGRAM, name)
            members = _members(catalog.layout(timeline)[1], name, subject)
            if series is not None and members:
                rows[series] = members
        if rows:
            wanted.append(Wanted(name, timelines[0], rows))
    return wanted


def _members(geometry: Geometry, name: str, subject: str) -> list[int]:
    """Return the rows of a subject in one kind of histogram."""
    if name == "activation":
        return [geometry.modules.index(subject)] if subject in geometry.modules else []
    if subject in geometry.parameters:
        return [geometry.parameters.index(subject)]
    if subject in geometry.layers:
        return list(geometry.parameters_of[geometry.layers.index(subject)])
    return []


def read_histograms(
    snapshot: Snapshot, wanted: Sequence[Wanted], *, steps: StepRange
) -> list[MagnitudeHistogram]:
    """Read the newest histogram of each kind that counted anything of the subject."""
    result = []
    for each in wanted:
        for series, step, data in _newest_first(snapshot, each, steps):
            rows = each.rows[series]
            counts = _counts(data, rows)
            if counts.any():
                counts.setflags(write=False)
                result.append(MagnitudeHistogram(name=each.name, step=step, tensors=len(rows), counts=counts))
                break
    return result


def read_histogram_columns(
    snapshot: Snapshot, wanted: Sequence[Wanted], *, steps: StepRange
) -> list[HistogramColumns]:
    """Read all histograms of each kind that counted anything of the subject, oldest first."""
    result = []
    for each in wanted:
        found = [
            (step, len(each.rows[series]), counts)
            for series, step, data in _stored(snapshot, each, steps)
            if (counts := _counts(data, each.rows[series])).any()
        ]
        if found:
            places, tensors, rows = zip(*found, strict=True)
            columns = np.array(places, np.int64), np.stack(rows)
            for array in columns:
                array.setflags(write=False)
            result.append(
                HistogramColumns(name=each.name, tensors=tensors[-1], steps=columns[0], counts=columns[1])
            )
    return result


def _counts(data: bytes, rows: list[int]) -> npt.NDArray[np.int64]:
    """Return (BINS,) counts of some rows together; zeros where there is not so much data."""
    if len(data) < (max(rows) + 1) * BINS * 4:
        return np.zeros(BINS, np.int64)
    table = np.frombuffer(data, dtype="<u4", count=(max(rows) + 1) * BINS).reshape(-1, BINS)
    return np.asarray(table[rows].sum(axis=0, dtype=np.int64))


def _stored(snapshot: Snapshot, wanted: Wanted, steps: StepRange) -> Iterator[tuple[int, int, bytes]]:
    """Yield (series, step, counts) of the newest `KEPT` rows, oldest first, the live edge's among them."""
    first, end = steps.first or 0, 2**62 if steps.end is None else steps.end
    series = list(wanted.rows)
    keys = snapshot.rows.histogram_keys(wanted.timeline, series, first=first, end=end, most=KEPT)
    plain = {
        (row.incarnation, row.seq, row.series, row.step): row.data
        for item in snapshot.edge
        for row in item.histograms
        if row.series in series and first <= row.step < end
    }
    chosen = sorted({*plain, *keys})[-KEPT:]
    packed = _fetch(snapshot, wanted, [key for key in chosen if key not in plain])
    for key in chosen:
        yield key[2], key[3], plain[key] if key in plain else packed[key]


def _newest_first(snapshot: Snapshot, wanted: Wanted, steps: StepRange) -> Iterator[tuple[int, int, bytes]]:
    """Yield (series, step, counts) of the newest rows, those of the live edge among them."""
    first, end = steps.first or 0, 2**62 if steps.end is None else steps.end
    series = list(wanted.rows)
    keys = snapshot.rows.histogram_keys(wanted.timeline, series, first=first, end=end, most=MAX_LOOKED_AT)
    found: dict[HistogramKey, bytes | None] = dict.fromkeys(keys)
    found |= {
        (row.incarnation, row.seq, row.series, row.step): row.data
        for item in snapshot.edge
        for row in item.histograms
        if row.series in series and first <= row.step < end
    }
    for key in sorted(found, reverse=True)[:MAX_LOOKED_AT]:
        yield key[2], key[3], found[key] or _fetch(snapshot, wanted, [key])[key]


def _fetch(snapshot: Snapshot, wanted: Wanted, keys: Sequence[HistogramKey]) -> dict[HistogramKey, bytes]:
    packed = snapshot.rows.histograms(wanted.timeline, keys) if keys else {}
    return {key: _unpacked(snapshot, packed.get(key), key) for key in keys}


def _unpacked(snapshot: Snapshot, data: bytes | None, key: tuple[int, ...]) -> bytes:
    """Return the counts of a stored row; b"", which counts nothing, for one that cannot be read."""
    try:
        return zlib.decompress(data or b"")
    except zlib.error:
        snapshot.odd.add("histograms", str(key))
        return b""
