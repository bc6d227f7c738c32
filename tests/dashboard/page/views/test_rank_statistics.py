"""How far ranks are from the median, against numpy by hand, and what each number is said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dashboard.page.views.rank_statistics import (
    NOT_MEASURED,
    RANK_STATISTICS,
    caption,
    cells,
    distances,
    medians,
    percentiles,
    pooling_words,
    rank_statistic,
    scale_end,
)
from dashboard.store.protocol import RankScalars, RankSeries

NORM, LOSS, TIME = (rank_statistic(id_) for id_ in ("grad_norm", "loss", "step_time"))


def series(mean: list[list[float]], largest: list[list[float]], flags: list[list[int]]) -> RankSeries:
    return RankSeries(mean=np.array(mean), largest=np.array(largest), flags=np.array(flags, np.uint8))


def found(**named: RankSeries) -> RankScalars:
    rows = len(next(iter(named.values())).flags)
    return RankScalars(
        ranks=tuple(range(rows)),
        hosts=("",) * rows,
        stages=(None,) * rows,
        present=(True,) * rows,
        steps=np.arange(2),
        steps_per_column=4,
        series=named,
    )


def test_cells_show_the_largest_of_norms_and_the_mean_of_times() -> None:
    each = series([[1, 2]], [[3, 4]], [[1, 1]])
    assert cells(found(grad_norm=each), NORM).tolist() == [[3, 4]]
    assert cells(found(step_time_s=each), TIME).tolist() == [[1, 2]]
    own = found(before_backward_s=each, own_backward_s=each)
    assert cells(own, rank_statistic("own_work")).tolist() == [[2, 4]]


def test_cells_nothing_measured_nan_and_inf_differ() -> None:
    nothing = math.nan
    each = series(
        [[nothing, 1], [1, nothing]], [[nothing, 1], [1, nothing]], [[0, 1 | 2], [1 | 4, 1 | 2 | 4]]
    )
    shown = cells(found(grad_norm=each), NORM)
    assert shown[0, 0] == NOT_MEASURED and shown[1, 0] == math.inf
    assert math.isnan(shown[0, 1]) and math.isnan(shown[1, 1])


def test_medians_leave_out_what_is_no_number() -> None:
    shown = np.array([[1.0, math.nan], [2.0, NOT_MEASURED], [9.0, math.inf], [math.nan, math.nan]])
    middle = medians(shown)
    assert middle[0] == 2.0 and math.isnan(middle[1])


def test_distances_are_log2_of_the_ratio() -> None:
    shown = np.array([[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [8.0, 1.0, 0.0]])
    found_ = distances(shown, medians(shown), NORM)
    assert found_[:, 0].tolist() == [-1, 0, 2]
    assert math.isnan(found_[0, 1]), "zero has no ratio"
    assert found_[:, 2].tolist() == [0, 0, 0], "all are zero alike"


def test_distances_of_losses_are_differences_since_they_may_be_negative() -> None:
    shown = np.array([[-1.0], [0.5], [2.0]])
    assert distances(shown, medians(shown), LOSS)[:, 0].tolist() == [-1.5, 0, 1.5]


def test_scale_ends_where_the_farthest_rank_mostly_is() -> None:
    steady = np.zeros((4, 100))
    assert scale_end(steady, NORM) == 1.1
    assert scale_end(steady, LOSS) == 1.0
    spike = steady.copy()
    spike[1, 3] = 9.0
    assert scale_end(spike, NORM) == 1.1, "one cell alone does not make all others dark"
    apart = steady.copy()
    apart[1, 50:] = np.log2(6.0)
    assert scale_end(apart, NORM) == 8.0
    assert scale_end(apart * 10, NORM) == 16.0
    assert scale_end(np.full((2, 2), np.nan), NORM) == 1.1


def test_percentiles_are_numpys_of_what_is_finite() -> None:
    values = np.random.default_rng(0).uniform(size=(3, 40))
    values[1, ::3] = np.nan
    values[2] = np.nan
    assert percentiles(values, 95) == [
        pytest.approx(np.percentile(values[0], 95)),
        pytest.approx(np.nanpercentile(values[1], 95)),
        None,
    ]


def test_caption_says_which_gradient_it_is() -> None:
    assert "has averaged over the ranks" in caption(NORM, ["reduced", "reduced", None])
    assert "before that can be recorded, too (`own_gradients`)" in caption(NORM, ["reduced"])
    assert "before DistributedDataParallel averages" in caption(rank_statistic("own_grad_norm"), ["reduced"])
    assert "own gradient: no DistributedDataParallel" in caption(NORM, ["local"] * 3)
    assert "part of the gradient" in caption(NORM, ["shard"])
    assert "cannot be compared" in caption(NORM, ["local", "reduced"])
    assert "is not known" in caption(NORM, [None, None])
    assert "is not known" in caption(NORM, ["<b>"])
    assert all(caption(each, ["local"]) for each in RANK_STATISTICS)


def test_pooling_words_and_unknown_statistic() -> None:
    assert pooling_words(NORM, 64) == "largest of 64 steps"
    assert pooling_words(TIME, 1_024) == "mean of 1,024 steps"
    assert pooling_words(NORM, 1) == ""
    assert rank_statistic("<script>") is NORM
