"""A loss that jumps at the same size of the input: falling as it did at first it may be a new task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from test_new_task import AT, SHORT, Judged, Series, falling


def learnt(after: Sequence[float], *, noise: float = 0.05, start: float = 30.0) -> Series:
    """A run whose loss falls from 30 to 1 in its first 200 steps, then what the test wants."""
    series = Series(after, SHORT, noise=noise)
    series.losses[:AT] *= falling(start, 0.05, steps=AT, floor=1.0)
    series.norms = series.losses.copy()
    return series


# ---------------------------------------------------------------------------------------------- new tasks


@pytest.mark.parametrize("times", [10.0, 30.0, 200.0])
@pytest.mark.parametrize("share", [0.03, 0.05, 0.06])
def test_loss_that_falls_as_it_did_at_first_is_information(times: float, share: float) -> None:
    judged = Judged(learnt(falling(times, share, steps=250, floor=1.0)))
    assert judged.told == [("info", "loss_spike", AT)]
    (event,) = judged.notebook.latest.values()
    assert "a new task?" in event.message and "same size" in event.message
    assert judged.alarms == []


def test_task_after_task_is_one_information_each() -> None:
    after = [*falling(30.0, 0.05, steps=200, floor=1.0), *falling(40.0, 0.05, steps=200, floor=1.0)]
    assert Judged(learnt(after)).told == [("info", "loss_spike", AT), ("info", "loss_spike", AT + 200)]


def test_loss_that_falls_as_at_first_in_much_noise_is_no_warning() -> None:
    assert Judged(learnt(falling(60.0, 0.04, steps=300, floor=1.0), noise=0.25)).warned == set()


# ------------------------------------------------------------------------------------ what must still warn


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("times", [20.0, 1000.0])
def test_corrupt_batches_warn(steps: int, times: float) -> None:
    assert ("loss_spike", AT) in Judged(learnt([times] * steps + [1.0] * 60)).warned


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_recovery_from_a_spoiled_batch_is_faster_and_warns(share: float) -> None:
    assert ("loss_spike", AT) in Judged(learnt(falling(30.0, share, floor=1.0))).warned


@pytest.mark.parametrize("growth", [0.0, 0.003, 0.05])
def test_jump_that_stays_or_rises_warns_soon(growth: float) -> None:
    after = [30.0 * (1.0 + growth) ** step for step in range(60)]
    assert ("loss_spike", AT) in Judged(learnt(after), ends=False).warned


def test_jump_that_falls_a_little_and_stays_warns() -> None:
    assert ("loss_spike", AT) in Judged(learnt(falling(30.0, 0.1, steps=200, floor=15.0))).warned


def test_loss_far_above_all_that_the_run_began_with_warns_at_once() -> None:
    assert ("loss_spike", AT) in Judged(learnt([1000.0, 950.0]), ends=False).warned


@pytest.mark.parametrize("start", [1.0, 2.5])
def test_run_whose_own_fall_was_not_seen_warns_at_once(start: float) -> None:
    """As one that goes on from a checkpoint."""
    assert ("loss_spike", AT) in Judged(learnt([30.0, 29.0], start=start), ends=False).warned


@pytest.mark.parametrize(
    ("classes", "warns"), [([True] * 5, True), ([True, True, False], False), ([True], False), ([], False)]
)
def test_batches_of_one_class_each_have_no_new_task(classes: list[bool], warns: bool) -> None:
    judged = Judged(learnt(falling(30.0, 0.05, steps=200, floor=1.0)), classes=classes)
    assert bool(judged.warned) == warns


@pytest.mark.parametrize("name", ["falls", "stays", "fast", "back"])
def test_batches_in_any_cuts_give_the_same_events(name: str) -> None:
    after = {
        "falls": falling(30.0, 0.05, steps=220, floor=1.0),
        "stays": [30.0] * 200,
        "fast": falling(30.0, 0.3, floor=1.0),
        "back": [30.0] * 2 + [1.0] * 90,
    }[name]
    series = learnt(after)
    whole, one_by_one = Judged(series), Judged(series, range(1, len(series.steps)))
    random = np.random.default_rng(1)
    parts = Judged(series, sorted(set(random.integers(1, len(series.steps), size=30).tolist())))
    assert whole.told == parts.told == one_by_one.told
    assert whole.alarms == parts.alarms == one_by_one.alarms
