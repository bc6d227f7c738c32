"""Reads of one parameter, layer or module: its statistics over steps, and its stored histograms.

The part of a store that the panel of a tensor asks; on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from .catalog import Catalog
from .heatmaps import ZERO_WHEN_ABSENT, HeatmapPlan, read_heatmap, same_model, source_of
from .histograms import plan_histograms, read_histogram_columns
from .protocol import Heatmap, HistogramColumns, StepRange, TensorTrack
from .queries import Snapshot
from .timelines import LAYER, MODULE, PARAMETER

ALL_STEPS: Final = StepRange()


class TensorReads:
    """Reads of one tensor; the fields are those of `StoreBase`."""

    _catalog: Catalog
    _lock: threading.Lock

    if TYPE_CHECKING:

        def _snapshot(self, *, is_writer: bool = False) -> AbstractContextManager[Snapshot]: ...

    def gradient_stage(self, run: str, rank: int = 0) -> str:
        """Which gradients the rank's newest statistics are of; see `Store.gradient_stage`."""
        with self._lock:
            newest = self._catalog.newest(run, rank)
            return (newest.state.stage if newest else None) or ""

    def histogram_columns(
        self, run: str, rank: int, subject: str, steps: StepRange = ALL_STEPS
    ) -> list[HistogramColumns]:
        """All stored histograms of a parameter, layer or module; see `Store.histogram_columns`."""
        with self._lock:
            wanted = plan_histograms(self._catalog, run, rank, subject=subject)
        if not wanted:
            return []
        with self._snapshot() as snapshot:
            return read_histogram_columns(snapshot, wanted, steps=steps)

    def tensor_tracks(
        self, run: str, rank: int, subject: str, steps: StepRange = ALL_STEPS, max_columns: int = 256
    ) -> list[TensorTrack]:
        """All statistics of a parameter, layer or module; see `Store.tensor_tracks`."""
        with self._lock:
            plans = list(_plans(self._catalog, run, rank, subject))
        if not plans:
            return []
        with self._snapshot() as snapshot:
            pictures = [
                (plan, read_heatmap(snapshot, plan, steps=steps, max_columns=max(1, max_columns)))
                for plan in plans
            ]
        return [_track(plan, picture) for plan, picture in pictures if (picture.flags > 0).any()]


def _plans(catalog: Catalog, run: str, rank: int, subject: str) -> Iterator[HeatmapPlan]:
    """Yield a picture of one row for each statistic that there may be of a name."""
    timelines, has_detail = same_model(catalog, run, rank), catalog.has_detail(run, rank)
    for kind in (PARAMETER, LAYER, MODULE):
        of_kind = [
            timeline for timeline in timelines if subject in source_of(catalog, timeline, "").names[kind]
        ]
        stored = {name for timeline in of_kind for name in catalog.timelines.series_names(timeline, kind)}
        absent = {name for name, companion in ZERO_WHEN_ABSENT.items() if companion in stored}
        for statistic in sorted(stored | absent):
            sources = tuple(source_of(catalog, timeline, statistic) for timeline in of_kind)
            yield HeatmapPlan(statistic, (subject,), (kind,), sources, has_detail)


def _track(plan: HeatmapPlan, picture: Heatmap) -> TensorTrack:
    return TensorTrack(
        name=plan.statistic,
        kind=plan.kinds[0],
        steps=picture.steps,
        steps_per_column=picture.steps_per_column,
        values=picture.values[0],
        flags=picture.flags[0],
    )
