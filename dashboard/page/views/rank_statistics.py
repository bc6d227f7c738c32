"""What the view Ranks can compare, how far each rank is from the median, and what each number is. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ...store.protocol import RankScalars
from .heatmap import INF, MEASURED, NAN

Floats = npt.NDArray[np.float64]
NOT_MEASURED: Final = -math.inf
"""Stands in a cell without a value: an infinite value of either sign is `math.inf`."""
RATIO_ENDS: Final = (1.1, 1.5, 2.0, 4.0, 8.0, 16.0)
"""Ends of the scale of ratios: the smallest that nearly all cells of each rank stay below."""
_NEARLY_ALL: Final = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatistic:
    """One thing that the view can compare."""

    id: str
    """As the address has it."""
    label: str
    names: tuple[str, ...]
    """Scalars whose sum it is."""
    pooled: Literal["largest", "mean"]
    """What a column of several steps shows of them."""
    scale: Literal["ratio", "difference"]
    """Distance from the median: a ratio, or a difference for what may be 0 or negative."""
    unit: str = ""
    note: str
    """What the number is, as far as ranks go."""


RANK_STATISTICS: Final = (
    RankStatistic(
        id="grad_norm",
        label="Gradient norm",
        names=("grad_norm",),
        pooled="largest",
        scale="ratio",
        note="",
    ),
    RankStatistic(
        id="own_grad_norm",
        label="Gradient norm before reduction",
        names=("own_grad_norm",),
        pooled="largest",
        scale="ratio",
        note="The norm is of each rank's own gradient, before DistributedDataParallel averages it over the "
        "ranks: it differs as their parts of the batch do. Measured every few steps (`own_gradients`).",
    ),
    RankStatistic(
        id="loss",
        label="Loss",
        names=("loss",),
        pooled="largest",
        scale="difference",
        note="Each rank's loss is that of its own part of the batch, unless the script averages it.",
    ),
    RankStatistic(
        id="step_time",
        label="Step time",
        names=("step_time_s",),
        pooled="mean",
        scale="ratio",
        unit="s",
        note="From one step to the next. Ranks that wait for each other take equally long, whichever is "
        "slow: their own work tells them apart.",
    ),
    RankStatistic(
        id="own_work",
        label="Own work of a step",
        names=("before_backward_s", "own_backward_s"),
        pooled="mean",
        scale="ratio",
        unit="s",
        note="Data, forward, update and this rank's own backward, before it waits for others. Where a "
        "forward or backward waits for other ranks inside, that wait is in it.",
    ),
)
DEFAULT_RANK_STATISTIC: Final = RANK_STATISTICS[0].id
_BY_ID: Final = {each.id: each for each in RANK_STATISTICS}

_STAGES: Final = {
    "reduced": "The norm is of the gradient that DistributedDataParallel has averaged over the ranks: "
    "replicas that agree have equal norms. A rank's own gradient before that can be recorded, too "
    "(`own_gradients`).",
    "local": "The norm is of each rank's own gradient: no DistributedDataParallel has averaged it. What a "
    "script averages by hand before the optimizer's step is averaged here, too.",
    "shard": "The norm is of the part of the gradient that each rank holds. Parts differ by nature: compare "
    "a rank with its own past. Overview has the norm of all parts together.",
    "scaled": "The norm is of gradients that a GradScaler has scaled. Under DistributedDataParallel they are "
    "averaged over the ranks before.",
    "unscaled": "The norm is measured after a GradScaler has unscaled the gradients. Under "
    "DistributedDataParallel they are averaged over the ranks before.",
}
_UNKNOWN_STAGE: Final = (
    "It is not known whether the gradients were averaged over the ranks when they were measured."
)


def rank_statistic(id_: str) -> RankStatistic:
    """Return a statistic; the default for one that there is not."""
    return _BY_ID.get(id_, RANK_STATISTICS[0])


def caption(statistic: RankStatistic, stages: Sequence[str | None]) -> str:
    """Return what the number is: of gradients, before or after they are averaged over the ranks."""
    if statistic.id != "grad_norm":
        return statistic.note
    known = Counter(stage for stage in stages if stage is not None)
    if not known:
        return _UNKNOWN_STAGE
    if len(known) > 1:
        parts = ", ".join(f"{count} {stage}" for stage, count in sorted(known.items()))
        return f"The ranks measure different gradients ({parts}): their norms cannot be compared."
    return _STAGES.get(next(iter(known)), _UNKNOWN_STAGE)


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def cells(found: RankScalars, statistic: RankStatistic) -> Floats:
    """Return (ranks, columns) what the view shows.

    NaN and `math.inf` where any step of a cell was not finite, `NOT_MEASURED` where there is no value.
    """
    series = [found.series[name] for name in statistic.names]
    values = sum(
        (each.largest if statistic.pooled == "largest" else each.mean for each in series[1:]),
        start=series[0].largest if statistic.pooled == "largest" else series[0].mean,
    )
    flags = np.bitwise_or.reduce([each.flags for each in series])
    shown = np.where(np.isfinite(values), values, NOT_MEASURED)
    shown[(flags & INF) != 0] = math.inf
    shown[(flags & NAN) != 0] = math.nan
    return np.asarray(shown, dtype=np.float64)


def columns_apart(found: RankScalars) -> int:
    """Return how many columns on from one that has values the next one is, as a rule; 1 with fewer than two.

    What is measured every tenth step would leave nine columns of ten empty.
    """
    flags = np.bitwise_or.reduce([each.flags for each in found.series.values()])
    filled = np.flatnonzero((flags & MEASURED).any(axis=0))
    return int(np.median(np.diff(filled))) if len(filled) > 1 else 1


def medians(shown: Floats) -> Floats:
    """Return (columns,) the median over the ranks that have a finite value; NaN where none has."""
    return _row_percentiles(np.ascontiguousarray(shown.T), 50)


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def distances(shown: Floats, median: Floats, statistic: RankStatistic) -> Floats:
    """Return (ranks, columns) the distance from the median: log2 of the ratio, or the difference.

    NaN where the value or the median is not finite, or has no ratio.
    """
    values = np.where(np.isfinite(shown), shown, np.nan)
    if statistic.scale == "difference":
        return np.asarray(values - median)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log2(values / median)
    both_zero = (values == 0) & (median == 0)
    return np.where(both_zero, 0.0, np.where(np.isfinite(logs) & (median > 0), logs, np.nan))


def scale_end(distance: Floats, statistic: RankStatistic) -> float:
    """Return the distance of the brightest colour: a ratio above 1, or a difference.

    The rank that is farthest off decides, without its few largest distances.
    """
    most = max((each for each in percentiles(np.abs(distance), _NEARLY_ALL) if each is not None), default=0.0)
    if statistic.scale == "difference":
        return most if most > 0 else 1.0
    return next((end for end in RATIO_ENDS if math.log2(end) >= most), RATIO_ENDS[-1])


def pooling_words(statistic: RankStatistic, steps_per_column: int) -> str:
    """Return what a cell of several steps shows; empty for single steps."""
    return f"{statistic.pooled} of {steps_per_column:,} steps" if steps_per_column > 1 else ""


def percentiles(values: Floats, share: float) -> list[float | None]:
    """Return a percentile (0-100) of each row's finite values; None for a row without any."""
    found = _row_percentiles(values, share)
    return [None if value != value else value for value in found.tolist()]


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def _row_percentiles(values: Floats, share: float) -> Floats:
    """Return (rows,) a percentile of each row's finite values, all rows at once; NaN for one without any."""
    if not values.size:
        return np.full(len(values), np.nan)
    is_finite = np.isfinite(values)
    ordered = np.sort(np.where(is_finite, values, np.inf), axis=1)
    last = is_finite.sum(axis=1) - 1
    place = np.maximum(last, 0) * (share / 100)
    below = np.floor(place).astype(np.intp)
    rows = np.arange(len(values))
    low = ordered[rows, below]
    high = ordered[rows, np.minimum(below + 1, np.maximum(last, 0))]
    part = place - below
    # As numpy does: from the nearer end, so that what lies between two equal values is that value.
    found = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return np.asarray(np.where(last < 0, np.nan, found), dtype=np.float64)
