"""Histograms of the frames of one append, as rows for the store. Called by `ingest` under the store's lock.

A histogram that does not fit its layout, or has bins of another version, is left out alone: the rest of its
frame is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.errors import WireError
from probe.wire import Frame, Histogram
from probe.wire.layer_values import Geometry
from probe.wire.magnitude_bins import BINS
from probe.wire.module_frames import HISTOGRAMS, unpack_histogram, unpack_module_rows

from .catalog import Catalog
from .edge import HistogramRow
from .timelines import HISTOGRAM


def histogram_rows(
    catalog: Catalog, timeline: int, incarnation: int, frames: Sequence[tuple[int, Frame]]
) -> list[HistogramRow]:
    """Arrange the histograms of frames, given as (sequence number, frame), of one layout."""
    geometry = catalog.layout(timeline)[1]
    rows = []
    for seq, frame in frames:
        for histogram in frame.histograms:
            data = _fitting(histogram, frame, geometry)
            if data is None:
                continue
            series = catalog.timelines.add_series(timeline, HISTOGRAM, histogram.name)
            if series is None:
                continue
            catalog.note_histogram(timeline, incarnation, seq)
            rows.append(
                HistogramRow(
                    timeline=timeline,
                    series=series,
                    step=frame.step,
                    incarnation=incarnation,
                    seq=seq,
                    data=data,
                )
            )
    return rows


def _fitting(histogram: Histogram, frame: Frame, geometry: Geometry) -> bytes | None:
    """Return (parameters, BINS) or (modules, BINS) counts; None for what does not fit."""
    if histogram.bins != BINS or histogram.name not in HISTOGRAMS:
        return None
    is_of_modules = histogram.rows == "modules"
    if is_of_modules != (histogram.name == "activation"):
        return None
    if is_of_modules and frame.module_rows:
        return _by_module(histogram, frame, len(geometry.modules))
    rows = len(geometry.modules if is_of_modules else geometry.parameters)
    return histogram.data if rows and len(histogram.data) == rows * BINS * 4 else None


def _by_module(histogram: Histogram, frame: Frame, modules: int) -> bytes | None:
    """Add up the calls of each module."""
    try:
        calls, counts = unpack_module_rows(frame, modules), unpack_histogram(histogram)
    except WireError:
        return None
    if len(calls) != len(counts):
        return None
    total = np.zeros((modules, BINS), dtype=np.int64)
    np.add.at(total, calls, counts)
    return np.minimum(total, 2**32 - 1).astype("<u4").tobytes()
