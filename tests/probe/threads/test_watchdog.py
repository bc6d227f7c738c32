"""The watchdog: what is a standstill, in seconds of a clock of our own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from probe.threads.watchdog import Standstill, Watchdog

TICK_S = 0.05
"""How often the recorder's thread asks."""


class Training:
    """A training whose steps end at given times, and somebody who asks every 50 ms."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        self.now_s = self.cpu_s = 0.0
        self.beats = self.evaluations = 0
        self.is_own = False
        self.step: int | None = None

    def ask(self) -> bool:
        return self.watchdog.note(
            self.now_s,
            beats=self.beats,
            evaluations=self.evaluations,
            step=self.step,
            cpu_s=self.cpu_s,
            is_own=self.is_own,
        )

    def run(self, step_times: Iterable[float]) -> list[Standstill]:
        """Make steps; return what was seen as a standstill on the way."""
        found: list[Standstill] = []
        for step_s in step_times:
            found += self.wait(step_s)
            self.step = 0 if self.step is None else self.step + 1
            self.beats += 4
        self.ask()
        return found

    def wait(self, seconds: float, *, cpu: float = 0.0) -> list[Standstill]:
        """Let time pass without a sign of life."""
        found = []
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.cpu_s += cpu * TICK_S
            self.ask()
            if (stand := self.watchdog.standstill) is not None:
                found.append(stand)
        return found


@pytest.fixture
def training() -> Training:
    training = Training(Watchdog(hang_s=5.0))
    training.ask()
    return training


def test_standstill_of_fast_steps_begins_after_five_seconds(training: Training) -> None:
    assert training.run([0.1] * 40) == []
    found = training.wait(6.0)
    assert found[0].idle_s == pytest.approx(5.0, abs=2 * TICK_S)
    assert found[0].step_s == pytest.approx(0.1, abs=0.01)


def test_standstill_of_slow_steps_is_thirty_of_them(training: Training) -> None:
    assert training.run([2.0] * 20) == []
    assert training.wait(59.0) == []
    assert training.wait(2.0)[0].limit_s == pytest.approx(60.0, rel=0.05)


def test_standstill_is_nothing_before_the_second_finished_step(training: Training) -> None:
    assert training.run([300.0, 0.1]) == []
    assert training.wait(4.0) == []
    assert training.wait(2.0)


def test_standstill_in_the_second_step_is_not_judged(training: Training) -> None:
    training.run([0.1])
    assert training.wait(300.0) == []


@pytest.mark.parametrize("factor", [3.0, 10.0, 25.0])
def test_standstill_is_none_where_steps_vary(training: Training, factor: float) -> None:
    times = [0.4 if step % 7 else 0.4 * factor for step in range(100)]
    assert training.run(times) == []


def test_standstill_after_steps_that_all_end_before_the_first_question_is_seen(training: Training) -> None:
    training.step, training.beats = 6, 28
    training.ask()
    assert training.wait(6.0)


def test_standstill_limit_counts_every_one_of_fast_steps(training: Training) -> None:
    """Of those 20 ms long some three end between two questions, of those 1 s long each is seen alone."""
    for _ in range(20):
        training.run([0.02, 0.02, 0.01])
        training.now_s += 0.05
        training.ask()
        training.run([1.0])
    assert training.watchdog.step_s < 0.1


def test_standstill_is_none_while_another_session_trains(training: Training) -> None:
    training.run([0.1] * 10)
    for _ in range(600):
        training.beats += 1
        assert training.wait(0.1) == []


def test_standstill_counts_from_the_last_evaluation(training: Training) -> None:
    training.run([0.1] * 10)
    for _ in range(100):
        training.evaluations += 1
        assert training.wait(0.2) == []
    found = training.wait(6.0)
    assert found[0].is_evaluating
    training.run([0.1])
    assert not training.wait(6.0)[0].is_evaluating


def test_standstill_leaves_out_what_the_probe_takes(training: Training) -> None:
    training.run([0.1] * 10)
    training.is_own = True
    assert training.wait(20.0) == []
    training.is_own = False
    assert training.wait(4.0) == []
    assert training.wait(2.0)


def test_standstill_in_the_probe_that_does_not_end_is_seen(training: Training) -> None:
    training.run([0.1] * 10)
    training.is_own = True
    assert training.wait(59.0) == []
    assert training.wait(10.0)


def test_standstill_does_not_end_with_work_of_the_probe(training: Training) -> None:
    """It tells of the exception that the wait ended with, say."""
    training.run([0.1] * 10)
    training.wait(6.0)
    training.is_own = True
    assert not training.ask()
    assert training.watchdog.standstill is not None


def test_standstill_ends_with_the_next_sign_of_life(training: Training) -> None:
    training.run([0.1] * 10)
    training.wait(6.0)
    assert training.watchdog.standstill is not None
    training.beats += 1
    assert training.ask()
    assert training.watchdog.standstill is None


def test_standstill_does_not_count_what_the_asking_thread_slept(training: Training) -> None:
    """A stopped process, or C code with Python's lock: the helper sees those."""
    training.run([0.1] * 10)
    training.wait(3.0)
    training.now_s += 100.0
    assert training.ask()
    assert training.wait(4.0) == []


@pytest.mark.parametrize(("cpu", "is_long"), [(0.0, True), (0.02, True), (0.5, False), (4.0, False)])
def test_standstill_at_other_work_is_long_after_a_minute_of_waiting(
    training: Training, cpu: float, *, is_long: bool
) -> None:
    training.run([0.1] * 10)
    found = training.wait(65.0, cpu=cpu)
    assert found[-1].is_long_for_other_work is is_long
    assert not found[0].is_long_for_other_work


def test_standstill_after_steps_that_start_anew_is_seen(training: Training) -> None:
    training.run([0.1] * 10)
    training.step = None
    training.run([0.1] * 3)
    assert training.wait(6.0)
