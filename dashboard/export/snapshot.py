"""Gathers what an export shows from a store, once, so that HTML and JSON say the same.

Any `Store` will do: the live one of a running server, or a temporary one filled from journals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pandas as pd

from probe.wire import Event, Layout

from ..errors import UnknownRunError
from ..page.views.breaks import Break, line_breaks
from ..page.views.event_facts import event_order
from ..page.views.heatmap import most_columns, widened
from ..page.views.heatmap_statistics import DEFAULT_STATISTIC, Statistic, statistic_of
from ..page.views.theme import ALL_STEPS
from ..page.views.throughput import stored_names, with_derived
from ..store.protocol import (
    GapRange,
    Heatmap,
    RankStart,
    RunSummary,
    StepNote,
    StepRange,
    Store,
    StreamPosition,
)
from .tracks import HEATMAP, Track, choose_track, tracks_of

MAX_POINTS = 1000
MAX_COLUMNS = 1000
MAX_VALUES = 2_000_000
"""Points of all series together: a run may log hundreds of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One rank of one run over a range of steps, at one moment."""

    run: RunSummary
    rank: int
    asked: StepRange
    """What was asked for; open ends mean the whole run."""
    covered: StepRange
    """First step with data and one past the last; open when there is none."""
    exported: float
    """UNIX seconds."""
    layout: Layout | None
    series: pd.DataFrame
    """As `Store.scalars` returns it, all names; of one track those that it draws."""
    statistic: Statistic
    """What the heatmap shows."""
    heatmap: Heatmap | None
    measured_every: int
    """One in how many steps the heatmap has values of; see `widened`."""
    events: tuple[Event, ...]
    notes: tuple[StepNote, ...]
    """What people have written at these steps."""
    gaps: tuple[GapRange, ...]
    starts: tuple[RankStart, ...]
    breaks: tuple[Break, ...]
    """In these steps."""
    positions: tuple[StreamPosition, ...]
    track: Track | None = None
    """The only one that is exported; None is the whole view."""

    @property
    def steps_per_point(self) -> int:
        """The most steps that one point of a line chart stands for."""
        return int(self.series["pooled"].max()) if len(self.series) else 1

    @property
    def steps_per_column(self) -> int:
        """Steps that one column of the heatmap stands for."""
        return self.heatmap.steps_per_column if self.heatmap is not None else 1


def take_snapshot(
    store: Store,
    run: str,
    *,
    rank: int = 0,
    steps: StepRange = ALL_STEPS,
    max_points: int = MAX_POINTS,
    max_columns: int = MAX_COLUMNS,
    statistic: str = DEFAULT_STATISTIC,
    track: str | None = None,
) -> Snapshot:
    """Read everything that an export of one rank needs.

    Args:
        store: Has the run.
        run: Run id.
        rank: Rank whose data is read.
        steps: Range of steps; open ends mean the whole run.
        max_points: Most points of a series.
        max_columns: Most columns of the heatmap.
        statistic: What the heatmap shows.
        track: The only one to read, see `tracks.py`; None is all of them. Events come with it.

    Raises:
        UnknownRunError: the store has no such run, or the run no such rank.
        UnknownTrackError: the rank has no such track.
    """
    summary = _summary(store, run, rank)
    names, layout = store.scalar_names(run, rank), store.layout(run, rank)
    alone = None if track is None else choose_track(track, tracks_of(names, has_heatmap=layout is not None))
    series = _series(store, run, rank, names, alone, steps=steps, max_points=max_points)
    chosen = statistic_of(statistic)
    heatmap = None
    if alone is None or alone.id == HEATMAP:
        rows = () if layout is None else layout.layers if chosen.of == "layer" else layout.modules
        columns = most_columns(max_columns, rows=len(rows))
        heatmap = store.heatmap(run, rank, chosen.id, steps, columns)
    wide, every = (None, 1) if heatmap is None else widened(heatmap)
    known, starts = store.events(run, rank), store.starts(run, rank)
    events = sorted((event for event in known if _holds(steps, event.step)), key=event_order)
    breaks = line_breaks(starts, known, rank)
    return Snapshot(
        run=summary,
        rank=rank,
        asked=steps,
        covered=_covered(series, heatmap, tuple(events)),
        exported=time.time(),
        layout=layout,
        series=series,
        statistic=chosen,
        heatmap=wide,
        measured_every=every,
        events=tuple(events),
        notes=tuple(note for note in store.notes(run) if _holds(steps, note.step)),
        gaps=tuple(store.gaps(run, rank)),
        starts=tuple(starts),
        breaks=tuple(each for each in breaks if _holds(steps, each.step)),
        positions=tuple(store.positions(summary.recorded_as)),
        track=alone,
    )


def _series(
    store: Store,
    run: str,
    rank: int,
    names: list[str],
    track: Track | None,
    *,
    steps: StepRange,
    max_points: int,
) -> pd.DataFrame:
    """Read all series, or those of one track with what is computed from stored ones."""
    wanted = names if track is None else stored_names(track.series)
    points = max(16, min(max_points, MAX_VALUES // max(1, len(wanted))))
    series = store.scalars(run, rank, wanted, steps, points)
    if track is None:
        return series
    known = with_derived(series)
    return known[known["name"].isin(list(track.series))].reset_index(drop=True)


def _summary(store: Store, run: str, rank: int) -> RunSummary:
    for summary in store.runs():
        if summary.run == run:
            ranks = [known.rank for known in summary.ranks]
            if rank in ranks:
                return summary
            raise UnknownRunError(
                f"Run {run} has no rank {rank}; it has {', '.join(map(str, ranks)) or 'none'}."
            )
    raise UnknownRunError(f"The store has no run {run}.")


def _covered(series: pd.DataFrame, heatmap: Heatmap | None, events: tuple[Event, ...]) -> StepRange:
    """The steps that lines, heatmap and events span together."""
    firsts = [event.step for event in events]
    ends = [event.step + 1 for event in events]
    if len(series):
        firsts.append(int(series["step"].min()))
        ends.append(int((series["step"] + series["pooled"]).max()))
    if heatmap is not None and len(heatmap.steps):
        firsts.append(int(heatmap.steps[0]))
        ends.append(int(heatmap.steps[-1]) + 1)
    return StepRange(first=min(firsts), end=max(ends)) if firsts else ALL_STEPS


def _holds(steps: StepRange, step: int) -> bool:
    after_first = steps.first is None or step >= steps.first
    return after_first and (steps.end is None or step < steps.end)
