"""Which rank stands out: series that must be named, and healthy ones that must not."""

from __future__ import annotations

import math

import numpy as np
from rank_runs import nan_event

from dashboard.page.views.rank_statistics import rank_statistic
from dashboard.page.views.rank_words import (
    far_from_median,
    first_bad,
    first_bad_on_screen,
    missing_ranks,
    ratio_text,
    remarks,
    straggler,
)

NORM, LOSS = rank_statistic("grad_norm"), rank_statistic("loss")
RANKS = list(range(8))


def times(*, slow: int | None = None, by: float = 0.05, noise: float = 0.002, steps: int = 100) -> np.ndarray:
    values = 0.1 + noise * np.random.default_rng(1).standard_normal((8, steps))
    if slow is not None:
        values[slow] += by
    return values


def test_first_bad_names_the_earliest_rank_and_its_lead() -> None:
    events = [nan_event(rank, 41_039) for rank in range(8) if rank != 3] + [nan_event(3, 41_037)]
    found = first_bad(events)
    assert found.text == "Rank 3 went NaN first at step 41,037, 2 steps before any other"
    assert (found.ranks, found.step, found.severity) == ((3,), 41_037, "critical")


def test_first_bad_at_one_step_is_whose_own_loss_it_is() -> None:
    others = [nan_event(rank, 20, kind="nonfinite_gradient", origin=None) for rank in (0, 1, 2)]
    found = first_bad([*others, nan_event(5, 20)])
    assert found.ranks == (5,) and "its own loss or input, before the gradient of any other" in found.text


def test_first_bad_of_most_ranks_at_once_is_no_rank() -> None:
    found = first_bad([nan_event(rank, 20) for rank in range(6)])
    assert found.ranks == () and found.text.startswith("6 ranks went NaN at step 20: which was first")


def test_first_bad_of_one_rank_alone_says_so() -> None:
    assert first_bad([nan_event(6, 7)]).text == "Rank 6 went NaN first at step 7, and no other rank has"


def test_first_bad_without_such_events_or_before_a_restart_is_none() -> None:
    assert first_bad([]) is None
    overflow = nan_event(1, 3, kind="amp_overflow", severity="info")
    assert first_bad([overflow, nan_event(2, 5, severity="info")]) is None
    newer = nan_event(1, 9, kind="loss_spike", severity="warning", incarnation=2**62)
    assert first_bad([nan_event(1, 3), newer]) is None


def test_first_bad_on_screen_is_the_first_column() -> None:
    shown = np.ones((8, 10))
    assert first_bad_on_screen(shown, RANKS, np.arange(10), steps_per_column=1, label="Loss") is None
    shown[:, 7:] = math.nan
    shown[4, 5:] = math.inf
    found = first_bad_on_screen(shown, RANKS, np.arange(10) * 4, steps_per_column=4, label="Loss")
    assert found.text == "Loss is NaN or Inf on rank 4 first, at one of steps 20 to 23"
    shown[:, 5] = math.nan
    found = first_bad_on_screen(shown, RANKS, np.arange(10), steps_per_column=1, label="Loss")
    assert found.ranks == () and "on 8 ranks from step 5 on" in found.text


def test_straggler_is_the_rank_that_takes_longer_by_itself() -> None:
    found = straggler(times(slow=6), times(), RANKS, what="its own work")
    assert found.ranks == (6,) and found.text.startswith(
        "Rank 6 is slow: its own work takes 150 ms, of the others 99.9 ms"
    )
    assert "100 % of 100 steps" in found.text


def test_straggler_healthy_ranks_have_none() -> None:
    assert straggler(times(), times(), RANKS, what="") is None
    assert straggler(times(slow=2, by=0.01), times(), RANKS, what="") is None, "a tenth of a step"
    assert straggler(times(slow=2)[:, :15], times(), RANKS, what="") is None, "too few steps"
    assert straggler(times(slow=2)[2:3], times(), RANKS, what="") is None, "one rank"
    assert straggler(np.full((8, 50), math.nan), times(), RANKS, what="") is None


def test_straggler_ranks_that_take_turns_have_none() -> None:
    turns = times()
    for step in range(100):
        turns[step % 8, step] += 0.2
    assert straggler(turns, times(), RANKS, what="") is None


def test_straggler_among_ranks_that_differ_anyway_is_none() -> None:
    ladder = 0.1 + 0.03 * np.arange(8)[:, None] + times(noise=0.0005) * 0
    assert straggler(ladder, times(), RANKS, what="") is None, "the last step of a ladder is no outlier"


def test_straggler_rank_without_times_is_left_out() -> None:
    values = times(slow=6)
    values[0] = math.nan
    assert straggler(values, times(), RANKS, what="").ranks == (6,)


def test_far_from_median_is_named_with_its_ratio() -> None:
    distance = 0.02 * np.random.default_rng(0).standard_normal((8, 60))
    assert far_from_median(distance, RANKS, NORM) is None
    distance[5, -16:] = -np.log2(6.1)
    found = far_from_median(distance, RANKS, NORM)
    assert found.ranks == (5,) and "gradient norm \u00f76.1 the median" in found.text
    distance[5, -3:] = 0
    distance[5, -16:-8] = 0
    assert far_from_median(distance, RANKS, NORM) is None, "it has come back"


def test_far_from_median_of_losses_is_a_difference() -> None:
    distance = 0.01 * np.random.default_rng(0).standard_normal((8, 60))
    distance[2] = 1.25
    assert "loss +1.25 from the median" in far_from_median(distance, RANKS, LOSS).text


def test_far_from_median_of_equal_or_two_ranks_is_none() -> None:
    assert far_from_median(np.zeros((8, 20)), RANKS, LOSS) is None
    assert far_from_median(np.array([[5.0] * 20, [-5.0] * 20]), [0, 1], NORM) is None
    assert far_from_median(np.zeros((8, 0)), RANKS, NORM) is None


def test_remarks_of_a_healthy_run_say_that_no_rank_stands_out() -> None:
    assert [each.text for each in remarks([None, None])] == ["No rank is unusual"]
    missing = missing_ranks([0, 1, 2], [True, False, True])
    assert [each.text for each in remarks([missing])] == ["No rank is unusual", "Rank 1 has sent nothing"]
    assert missing_ranks([0, 1], [True, True]) is None


def test_ratio_text_says_which_way() -> None:
    assert (ratio_text(6.1), ratio_text(0.5), ratio_text(1)) == ("\u00d76.1", "\u00f72", "\u00d71")
