"""Reads one rank of a run from a store, for a comparison: numbers step by step, and how it was started.

Called by the page's callbacks. Where old steps are kept only as averages, their blocks say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.start_facts import KIND, StartFacts

from ..store.protocol import Heatmap, StepRange, Store
from ..store.pyramid import SAW_INF
from .parting import WINDOW, Mask, Series, StepBlock, Steps, Values, is_compared

_READ_STEPS: Final = 16 * WINDOW
"""Steps of one query."""


def read_store_steps(store: Store, run: str, rank: int, *, end: int | None = None) -> Iterator[StepBlock]:
    """Yield what a store has of a rank, window after window, up to the newest incarnation's newest step.

    Args:
        store: has the run.
        run: its id.
        rank: number of the rank.
        end: step to stop before; None reads all.
    """
    found = next((each for each in store.runs() if each.run == run), None)
    summary = next((each for each in found.ranks if each.rank == rank), None) if found else None
    if summary is None or summary.last_step is None:
        return
    names = [name for name in store.scalar_names(run, rank) if is_compared(name)]
    # A restart's own first step lies behind those of the incarnations before it.
    extent = store.scalars(run, rank, names, StepRange(), 16)["step"]
    begin = int(extent.min()) if len(extent) else summary.first_step or 0
    stop = summary.last_step + 1 if end is None else min(end, summary.last_step + 1)
    for first in range(begin // _READ_STEPS * _READ_STEPS, stop, _READ_STEPS):
        steps = StepRange(first=first, end=min(stop, first + _READ_STEPS))
        points = store.scalars(run, rank, names, steps, _READ_STEPS)
        heatmap = store.heatmap(run, rank, "grad_norm", steps, _READ_STEPS)
        yield from _blocks(points, heatmap)


def stored_facts(store: Store, run: str, rank: int = 0) -> StartFacts | None:
    """Return the newest start facts of a rank; None where there are none that can be read."""
    documents = store.documents(run, KIND, rank)
    try:
        return read_body(documents[-1].document, StartFacts) if documents else None
    except WireError:
        return None


def _blocks(points: pd.DataFrame, heatmap: Heatmap | None) -> Iterator[StepBlock]:
    """Split what one query has found into windows."""
    layers: tuple[str, ...] = () if heatmap is None else heatmap.rows
    columns, norms, measured = _norms(heatmap)
    is_pooled = len(points) > 0 and int(points["pooled"].max()) > 1
    is_pooled = is_pooled or (heatmap is not None and heatmap.steps_per_column > 1)
    steps = np.union1d(points["step"].to_numpy(dtype=np.int64), columns)
    by_name = {str(name): _on(steps, rows) for name, rows in points.groupby("name")}
    at = np.searchsorted(steps, columns)
    all_norms = np.full((len(steps), len(layers)), np.nan)
    all_measured = np.zeros((len(steps), len(layers)), dtype=np.bool_)
    all_norms[at], all_measured[at] = norms, measured
    for window in np.unique(steps // WINDOW).tolist():
        low, high = np.searchsorted(steps, [window * WINDOW, (window + 1) * WINDOW])
        part = slice(int(low), int(high))
        yield StepBlock(
            steps=steps[part],
            scalars={
                name: Series(series.values[part], series.measured[part]) for name, series in by_name.items()
            },
            layers=layers,
            norms=all_norms[part],
            measured=all_measured[part],
            pooled=is_pooled,
        )


def _norms(heatmap: Heatmap | None) -> tuple[Steps, Values, Mask]:
    """Return the (columns,) steps with a layer, (columns, layers) norms, and which of them there are."""
    if heatmap is None:
        return np.empty(0, np.int64), np.empty((0, 0)), np.empty((0, 0), np.bool_)
    flags = heatmap.flags.T
    kept = flags.any(axis=1)
    norms = heatmap.values.T[kept].astype(np.float64)
    norms[(flags[kept] & SAW_INF) != 0] = np.inf
    return heatmap.steps[kept], norms, flags[kept] != 0


def _on(steps: Steps, rows: pd.DataFrame) -> Series:
    """Return one series at the steps of all."""
    values, measured = np.full(len(steps), np.nan), np.zeros(len(steps), dtype=np.bool_)
    at = np.searchsorted(steps, rows["step"].to_numpy(dtype=np.int64))
    values[at] = rows["mean"].to_numpy(dtype=np.float64)
    values[at[rows["inf"].to_numpy() > 0]] = np.inf
    values[at[rows["nan"].to_numpy() > 0]] = np.nan
    measured[at] = True
    return Series(values, measured)
