"""`Alarm`: when it rings, and what it believes."""

from itertools import pairwise

import pytest

from probe.loop.alarm import Alarm

MS = 1_000_000


def rings_at(alarm: Alarm, *, training_ms: int, spent_ms: int, steps: int) -> list[int]:
    return [step for step in range(steps) if alarm.note(training_ms * MS, spent_ms * MS)]


@pytest.mark.parametrize(("spent_ms", "first"), [(20, None), (40, 8), (60, 4), (200, 0), (5_000, 0)])
def test_alarm_rings_once_eight_steps_of_the_limit_are_overspent(spent_ms: int, first: int | None) -> None:
    # A sixth of the step is a fifth of the training: 20 of 100 ms.
    rings = rings_at(Alarm(1 / 6), training_ms=100, spent_ms=spent_ms, steps=20)
    assert (rings[0] if rings else None) == first


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_alarm_without_a_limit_never_rings(limit: float) -> None:
    assert rings_at(Alarm(limit), training_ms=1, spent_ms=9_000, steps=50) == []


def test_alarm_counts_what_steps_between_pay_back() -> None:
    alarm = Alarm(1 / 6)
    # 150 ms every 10 steps are less than 20 ms a step, though each is nearly eight steps' worth.
    assert not any(alarm.note(100 * MS, (step % 10 == 0) * 150 * MS) for step in range(200))


def test_alarm_that_is_of_no_use_rings_ever_more_seldom() -> None:
    rings = rings_at(Alarm(0.02), training_ms=10, spent_ms=90, steps=200)
    gaps = [later - earlier for earlier, later in pairwise(rings)]
    assert gaps == [2, 4, 8, 16, *[32] * (len(gaps) - 4)] and len(gaps) > 5


def test_alarm_that_was_heeded_is_ready_again() -> None:
    alarm = Alarm(0.02)
    rings_at(alarm, training_ms=10, spent_ms=90, steps=30)
    alarm.settle()
    assert rings_at(alarm, training_ms=10, spent_ms=90, steps=3) == [0, 2]


def test_alarm_believes_the_cheapest_of_three_and_the_middle_of_the_steps() -> None:
    alarm = Alarm(0.1)
    for training_ms in (900, 10, 11, 9, 10):
        alarm.note(training_ms * MS, 0)
    load = alarm.load({"activations": [1, 50, 40, 70], "histograms": [9, 30]}, base_ns=5.0)
    assert (load.training_ns, load.base_ns) == (10 * MS, 5.0)
    assert load.costs_ns == {"activations": 40, "histograms": 9}


def test_alarm_leaves_less_than_twice_the_limit_to_others() -> None:
    alarm = Alarm(0.1)
    alarm.note(90 * MS, 0)
    # The limit allows 10 ms beside 90.
    for cost_ms, is_far in ((38, False), (42, True)):
        load = alarm.load({"activations": [cost_ms * MS, cost_ms * MS]}, base_ns=0.0)
        assert alarm.is_far_above(load, {"activations": 2}) is is_far
