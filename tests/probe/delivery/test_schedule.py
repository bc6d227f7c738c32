"""The recorder's thread sleeps until a task is due, and does together what is due together."""

from __future__ import annotations

import itertools

from probe.delivery.recorder.schedule import Schedule


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_schedule_wakes_for_the_first_task_and_takes_its_neighbours_along() -> None:
    clock = Clock()
    schedule = Schedule(clock)
    assert schedule.is_due("new") and schedule.wait_s == 0.0
    schedule.again("often", 0.1)
    schedule.again("soon after", 0.11)
    schedule.again("seldom", 1.0)
    assert abs(schedule.wait_s - 0.1) < 1e-9
    clock.now_s += 0.1
    assert [schedule.is_due(task) for task in ("often", "soon after", "seldom")] == [True, True, False]


def test_schedule_never_sleeps_for_long() -> None:
    clock = Clock()
    schedule = Schedule(clock)
    schedule.again("rare", 3600.0)
    assert schedule.wait_s == 1.0


def test_schedule_an_idle_second_has_few_wakes() -> None:
    clock = Clock()
    schedule = Schedule(clock)
    periods = {"control": 0.25, "frames": 0.25, "hang": 0.5, "gaps": 1.0, "memory": 1.0}
    for late_s, (task, period_s) in enumerate(periods.items()):
        clock.now_s = 100.0 + 0.03 * late_s  # they were not begun together
        schedule.again(task, period_s)
    done: dict[str, list[float]] = {task: [] for task in periods}
    wakes = 0
    while clock.now_s < 110.0:
        wakes += 1
        for task, period_s in periods.items():
            if schedule.is_due(task):
                done[task].append(clock.now_s)
                schedule.again(task, period_s)
        clock.now_s += schedule.wait_s + 1e-3
    assert wakes <= 42
    for task, times in done.items():
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert all(gap <= periods[task] + 0.02 for gap in gaps) and len(times) >= 9.0 / periods[task]


def test_schedule_does_in_a_lull_what_is_due_soon() -> None:
    clock = Clock()
    schedule = Schedule(clock)
    schedule.again("judge", 0.25)
    schedule.again("seldom", 1.0)
    sleep_s = schedule.wait_s - schedule.early_s(schedule.wait_s)
    clock.now_s += sleep_s
    assert schedule.is_due("judge") and not schedule.is_due("seldom")
    schedule.again("judge", 0.25)
    assert 0.25 < schedule.wait_s <= 0.31, "it was done for the end that was just coming"
