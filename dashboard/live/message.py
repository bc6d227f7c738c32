"""Builds the messages for one client of the live feed; remembers what that client already holds.

Called by the live hub on a reader thread, one call at a time per client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import pandas as pd

from probe.wire.training_progress import KIND, TrainingProgress

from ..page.views.progress_line import newest_progress, progress_line
from ..page.views.verdict import verdict
from ..store.protocol import RankSummary, RunSummary, Store
from .charts import add_charts
from .codec import DeltaEncoder
from .view import (
    Subscription,
    add_heatmap,
    choose_rank,
    choose_run,
    events_mark,
    gap_list,
    level_of,
    run_list,
    slow_scalars,
    status,
    step_range,
)

VERSION: Final = 1
SLOW_INTERVAL_S: Final = 1.0


class ClientView:
    """One client's picture of the store."""

    def __init__(
        self, store: Store, *, notices: Callable[[], list[str]] = list, storage: Callable[[], str] = str
    ) -> None:
        self._store = store
        self._notices, self._storage = notices, storage
        self._encoder = DeltaEncoder()
        self._runs: list[dict[str, Any]] | None = None
        self._rows: tuple[str, ...] | None = None
        self._progress: tuple[tuple[str, int, int], TrainingProgress | None] | None = None
        self._slow: tuple[tuple[str, int], float, pd.DataFrame] | None = None

    def message(self, wish: Subscription, *, with_data: bool) -> bytes:
        """Return the next message.

        Args:
            wish: What the client wants to see.
            with_data: Lines and heatmap too, not only state, tiles and events.
        """
        runs = self._store.runs()
        header: dict[str, Any] = {"v": VERSION, "now": time.time(), "subscription": wish.id, "run": None}
        header["notices"], header["storage"] = self._notices(), self._storage()
        listed = run_list(runs)
        if listed != self._runs:
            self._runs = header["runs"] = listed
        run = choose_run(runs, wish.run)
        rank = choose_rank(run, wish.rank) if run is not None else None
        if run is not None and rank is not None:
            header |= self._run_fields(run, rank)
            if with_data:
                header |= self._data_fields(run, rank, wish, event_end=header["eventEnd"])
        return self._encoder.finish(header)

    def _run_fields(self, run: RunSummary, rank: RankSummary) -> dict[str, Any]:
        """State, tiles, and what is new about events."""
        events = self._store.events(run.run)
        fields = status(self._store, run, rank, slow=self._slow_scalars(run, rank))
        return fields | {
            "progress": self._progress_fields(run, rank, step_s=fields["stepSeconds"]),
            "events": events_mark(events),
            "eventCounts": run.event_counts,
            "level": level_of(events, run, rank),
            "histograms": self._store.histogram_mark(run.run, rank.rank),
            "verdict": verdict(events, last_step=rank.last_step),
            "documents": self._store.documents_mark(run.run),
            # An event arrives before the frame of its step: the axis has to make room for its marker.
            "eventEnd": max((event.step + 1 for event in events), default=None),
        }

    def _progress_fields(
        self, run: RunSummary, rank: RankSummary, *, step_s: float | None
    ) -> dict[str, Any] | None:
        """The line above the tiles; its document is read when one of the run has changed."""
        key = (run.run, rank.rank, self._store.documents_mark(run.run))
        if self._progress is None or self._progress[0] != key:
            documents = self._store.documents(run.run, KIND, rank.rank)
            self._progress = (key, newest_progress(documents))
        line = progress_line(
            self._progress[1],
            last_step=rank.last_step,
            step_s=step_s,
            age_s=None if rank.last_time is None else max(0.0, time.time() - rank.last_time),
            is_running=rank.state in ("running", "silent"),
        )
        return None if line is None else asdict(line)

    def _slow_scalars(self, run: RunSummary, rank: RankSummary) -> pd.DataFrame:
        """Read memory at most once a second and run."""
        key, now = (run.run, rank.rank), time.monotonic()
        if self._slow is None or self._slow[0] != key or now - self._slow[1] >= SLOW_INTERVAL_S:
            self._slow = (key, now, slow_scalars(self._store, run, rank))
        return self._slow[2]

    def _data_fields(
        self, run: RunSummary, rank: RankSummary, wish: Subscription, *, event_end: int | None
    ) -> dict[str, Any]:
        """Lines, heatmap, gaps and the range they and the events cover (half-open, in steps)."""
        steps = step_range(wish, rank)
        charts = add_charts(
            self._encoder,
            self._store,
            run.run,
            rank.rank,
            steps=steps,
            points=wish.points,
            with_logged=wish.logged,
        )
        heatmap, self._rows = add_heatmap(
            self._encoder, self._store, run.run, rank.rank, steps=steps, wish=wish, held_rows=self._rows
        )
        first = steps.first if steps.first is not None else rank.first_step
        end = steps.end
        if end is None and rank.last_step is not None:
            end = max(rank.last_step + 1, event_end or 0)
        return {
            "range": [first, end],
            **charts,
            "heatmap": heatmap,
            "gaps": gap_list(self._store, run.run, rank.rank),
        }
