"""The view Ranks of a run: its header fields and its track. Read for pages that have this view open.

Called by `pictures` on the hub's reader threads, inside of their view of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
import numpy as np

from probe.wire import Event
from probe.wire.layer_values import narrow

from ..page.views.rank_statistics import (
    RANK_STATISTICS,
    Floats,
    RankStatistic,
    caption,
    cells,
    columns_apart,
    distances,
    medians,
    percentiles,
    pooling_words,
    rank_statistic,
    scale_end,
)
from ..page.views.rank_words import (
    RankRemark,
    far_from_median,
    first_bad,
    first_bad_on_screen,
    missing_ranks,
    remarks,
    straggler,
)
from ..store.protocol import RankScalars, RunSummary, StepRange, Store
from .answers import Answers
from .tracks import Track

TIMED_STEPS: Final = 256
"""Newest steps on screen whose times are looked at one by one."""
STEP_TIME: Final = "step_time_s"
BEFORE: Final = "before_backward_s"
OWN: Final = "own_backward_s"


class RanksQuestion(msgspec.Struct, frozen=True):
    """What distinguishes one answer from another; the picked rank does not."""

    asked_run: str | None
    """As the page asked: the revision counts are those of this."""
    run: str
    statistic: str
    first: int | None
    end: int | None
    columns: int


class RankAnswers:
    """Answers that pages share, whichever rank each of them has picked."""

    def __init__(self, store: Store) -> None:
        """Start without answers."""
        self._store = store
        self._answers: Answers[RanksQuestion, RanksPart] = Answers(
            size_bytes=lambda answer: answer.track.size_bytes
        )

    def ask(self, run: RunSummary, question: RanksQuestion, *, steps: StepRange, revision: int) -> RanksPart:
        """Return all ranks; `revision` was read before the view of the store began."""
        return self._answers.ask(
            question,
            revision=lambda: revision,
            work_out=lambda: read_ranks(
                self._store,
                run,
                statistic=question.statistic,
                steps=steps,
                columns=question.columns,
                events=self._store.events(run.run),
            ),
            asked_at=float("inf"),
        )

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPart:
    """All ranks of a run, for one statistic."""

    fields: dict[str, Any]
    track: Track
    """A point is a column: the median over the ranks, then each rank's value. Minus infinity is "not
    measured", NaN and plus infinity stand where any step of the cell was NaN or infinite."""


def read_ranks(
    store: Store, run: RunSummary, *, statistic: str, steps: StepRange, columns: int, events: Sequence[Event]
) -> RanksPart:
    """Read all ranks.

    Args:
        store: What is read.
        run: The run in view.
        statistic: Id of what is compared.
        steps: Steps in view.
        columns: Most columns.
        events: Of the run.
    """
    chosen = rank_statistic(statistic)
    found = store.rank_scalars(run.run, list(chosen.names), steps, columns)
    if (apart := columns_apart(found)) > 1:
        found = store.rank_scalars(run.run, list(chosen.names), steps, max(1, len(found.steps) // apart))
    shown = cells(found, chosen)
    median = medians(shown)
    distance = distances(shown, median, chosen)
    newest = {rank.rank: rank.incarnation for rank in run.ranks}
    times, timed = _times(store, run.run, found, steps, chosen)
    said = remarks(
        [
            first_bad([event for event in events if newest.get(event.rank) == event.incarnation])
            or first_bad_on_screen(
                shown,
                found.ranks,
                found.steps,
                steps_per_column=found.steps_per_column,
                label=chosen.label,
            ),
            _straggler(timed),
            far_from_median(distance, found.ranks, chosen),
            missing_ranks(found.ranks, found.present),
        ]
    )
    fields = {
        "statistic": chosen.id,
        "statistics": _offered(store, run, chosen),
        "ranks": found.ranks,
        "hosts": found.hosts,
        "present": found.present,
        "stepsPerColumn": found.steps_per_column,
        "unit": chosen.unit,
        "scale": chosen.scale,
        "scaleEnd": scale_end(distance, chosen),
        "pooled": pooling_words(chosen, found.steps_per_column),
        "caption": caption(chosen, found.stages),
        "remarks": [asdict(remark) for remark in said],
        "times": times,
    }
    return RanksPart(fields=fields, track=_track(found, shown, median))


def _track(found: RankScalars, shown: Floats, median: Floats) -> Track:
    points = narrow(np.vstack([median, shown]).T).astype("<f4", copy=False)
    return Track(
        "ranks/steps",
        found.steps.astype("<f8"),
        "ranks/values",
        points.reshape(-1),
        rows=len(found.ranks) + 1,
    )


def _offered(store: Store, run: RunSummary, chosen: RankStatistic) -> list[str]:
    """Return the statistics that some rank has, and the chosen one."""
    known = {name for rank in run.ranks for name in store.scalar_names(run.run, rank.rank)}
    return [each.id for each in RANK_STATISTICS if each is chosen or known.issuperset(each.names)]


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def _times(
    store: Store, run: str, found: RankScalars, steps: StepRange, chosen: RankStatistic
) -> tuple[dict[str, Any], RankScalars]:
    """Return the times of each rank's steps for the page, and what they are of."""
    end = int(found.steps[-1]) + found.steps_per_column if len(found.steps) else 0
    end = end if steps.end is None else min(end, steps.end)
    newest = StepRange(first=max(end - TIMED_STEPS, steps.first or 0), end=steps.end)
    timed = store.rank_scalars(run, [STEP_TIME, BEFORE, OWN], newest, TIMED_STEPS)
    own = chosen.id == "own_work"
    values = timed.series[BEFORE].mean + timed.series[OWN].mean if own else timed.series[STEP_TIME].mean
    low, high = percentiles(values, 50), percentiles(values, 95)
    known = [value for value in low if value is not None]
    of = int(np.isfinite(values).sum(axis=1).max()) if values.size else 0
    every = f", each the mean of {timed.steps_per_column:,}" if timed.steps_per_column > 1 else ""
    fields = {
        "what": "own work" if own else "step time",
        "p50": low,
        "p95": high,
        "median": float(np.median(known)) if known else None,
        "note": f"of the newest {of:,} measured steps on screen{every}" if of else "",
    }
    return fields, timed


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def _straggler(timed: RankScalars) -> RankRemark | None:
    """Judge who is slow: by each rank's own work if it is recorded, since in steps they wait for others."""
    step, before = timed.series[STEP_TIME].mean, timed.series[BEFORE].mean
    own = before + timed.series[OWN].mean
    for taken, what in ((own, "its own work"), (before, "what it does before backward"), (step, "its step")):
        if np.isfinite(taken).any():
            return straggler(taken, step, timed.ranks, what=what)
    return None
