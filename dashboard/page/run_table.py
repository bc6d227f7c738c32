"""The rows of the table of runs: what a store knows of each run as a whole, as plain JSON.

Called on the server's callback threads. The losses of a run are read once until it has new steps, and only
for so long at a time: a page with hundreds of runs gets their names at once, numbers with its next asking.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..ingest.run_removal import run_state
from ..store.protocol import RunMark, RunSummary, StepRange, Store
from .views.run_actions import delete_reason

BUDGET_S: Final = 0.4
"""Time that one asking may spend on losses."""
SPARK_POINTS: Final = 64
_MAX_RUNS: Final = 2000
"""Runs that one answer lists: the newest."""


@dataclass(frozen=True, slots=True)
class _Losses:
    """What the table shows of a run's losses."""

    best: float | None
    """The smallest finite one; None without any."""
    means: list[float | None]
    """At most `SPARK_POINTS` of them; None where nothing finite was measured."""


class RunTable:
    """The rows of one store's runs. Thread-safe.

    Args:
        store: has the runs.
        clock: seconds, for the budget.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._losses: dict[str, tuple[tuple[int, int | None], _Losses]] = {}

    @property
    def total(self) -> int:
        """How many runs and models there are; the rows are those of the newest."""
        return len(self._store.runs())

    def rows(self, only: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Return a row a run, newest first; `is_read` is False where the losses have yet to be read.

        Args:
            only: ids of the runs that are asked for; None means all.
        """
        runs = self._store.runs()[:_MAX_RUNS]
        marks = self._store.marks()
        end = self._clock() + BUDGET_S
        with self._lock:
            known = {run.run for run in runs}
            running = {run.recorded_as for run in runs if run_state(run) == "running"}
            self._losses = {run: losses for run, losses in self._losses.items() if run in known}
            wanted = runs if only is None else [run for run in runs if run.run in only]
            return [
                self._row(run, marks.get(run.run, RunMark()), end, is_written=run.recorded_as in running)
                for run in wanted
            ]

    def _row(self, run: RunSummary, mark: RunMark, end: float, *, is_written: bool) -> dict[str, Any]:
        """A row; the journal is deleted as a whole, so no model of it may still be trained."""
        state = run_state(run)
        reason = delete_reason("running" if is_written else state, is_starred=mark.starred)
        losses, is_newest = self._losses_of(run, end)
        return {
            "run": run.run,
            "name": run.name,
            "group": run.start.group or run.recorded_as,
            "model": run.start.model,
            "member": run.member,
            "series": run.series,
            "started": run.started,
            "state": state,
            "written": max((rank.last_time or 0.0 for rank in run.ranks), default=0.0) or run.started,
            "step": max((rank.last_step for rank in run.ranks if rank.last_step is not None), default=None),
            "best": losses.best,
            "losses": losses.means,
            "is_read": is_newest,
            "critical": run.event_counts.get("critical", 0),
            "warnings": run.event_counts.get("warning", 0),
            "note": mark.note,
            "starred": mark.starred,
            "stays": reason,
        }

    def _losses_of(self, run: RunSummary, end: float) -> tuple[_Losses, bool]:
        """Return the losses of the first rank, and whether they are those of its newest step."""
        if not run.ranks:
            return _Losses(None, []), True
        rank = run.ranks[0]
        state = (rank.incarnation, rank.last_step)
        before = self._losses.get(run.run)
        if before is not None and before[0] == state:
            return before[1], True
        if self._clock() >= end:
            return (before[1] if before is not None else _Losses(None, [])), False
        found = self._read(run.run, rank.rank)
        self._losses[run.run] = (state, found)
        return found, True

    def _read(self, run: str, rank: int) -> _Losses:
        points = self._store.scalars(run, rank, ["loss"], StepRange(), SPARK_POINTS)
        lows = points["min"].to_numpy(dtype=np.float64)
        finite = lows[np.isfinite(lows)]
        means = [
            float(mean) if np.isfinite(mean) and nan + inf == 0 else None
            for mean, nan, inf in zip(points["mean"], points["nan"], points["inf"], strict=True)
        ]
        return _Losses(float(finite.min()) if len(finite) else None, means)
