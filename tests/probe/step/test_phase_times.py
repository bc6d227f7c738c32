"""Phases of steps by a clock that is set: what counts to which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe.attach.loader_waits import BATCHES, WAITED_NS, loader_waits
from probe.guard import Guard
from probe.step.phase_times import PhaseTimes

MS = 1_000_000


class Clock:
    """Time, and what the probe and DataLoaders take of it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.guard = Guard()
        self.phases = PhaseTimes(self.guard, lambda: self.now_ns)

    def run(self, ms: int, *, own_ms: int = 0, batches: int = 0) -> None:
        """Let time pass; of it the probe takes so much, or it is waited for so many batches."""
        self.now_ns += ms * MS
        self.guard.spent_ns += own_ms * MS
        if batches:
            waits = loader_waits.of_this_thread()
            waits[WAITED_NS] += ms * MS
            waits[BATCHES] += batches

    def forward(self, ms: int, *, own_ms: int = 0, is_training: bool = True) -> None:
        self.phases.begin_forward(is_training=is_training)
        self.run(ms, own_ms=own_ms)
        self.phases.end_forward()

    def backward(self, ms: int, *, own_ms: int = 0) -> None:
        self.phases.begin_backward()
        self.run(ms, own_ms=own_ms)
        self.phases.end_backward()

    def update(self, ms: int) -> None:
        self.phases.begin_update()
        self.run(ms)
        self.phases.end_update()

    def take_ms(self) -> dict[str, int]:
        return {name: round(1e3 * s) for name, s in self.phases.take().items()}


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    clock.forward(1)
    clock.phases.take()
    yield clock
    loader_waits.cells.clear()


def test_sums_are_of_all_micro_steps(clock: Clock) -> None:
    clock.update(7)
    for _micro_step in range(2):
        clock.run(20, batches=1)
        clock.forward(10)
        clock.run(3)
        clock.backward(30)
    assert clock.take_ms() == {"optimizer_s": 7, "data_wait_s": 40, "forward_s": 20, "backward_s": 60}
    assert clock.take_ms() == {}


def test_what_the_probe_takes_is_in_no_phase(clock: Clock) -> None:
    clock.forward(10, own_ms=4)
    clock.run(5, own_ms=5)
    clock.backward(30, own_ms=40)
    assert clock.take_ms() == {"forward_s": 6, "backward_s": 0}


def test_passes_inside_of_an_optimizers_step_are_not_its_own(clock: Clock) -> None:
    clock.phases.begin_update()
    clock.run(1)
    clock.forward(10, own_ms=2)
    clock.run(2, own_ms=1)
    clock.backward(20)
    clock.run(4)
    clock.phases.end_update()
    assert clock.take_ms() == {"optimizer_s": 6, "forward_s": 8, "backward_s": 20}


def test_optimizers_step_that_has_raised_is_unknown(clock: Clock) -> None:
    clock.phases.begin_update()
    clock.run(100)
    clock.forward(10)
    clock.backward(20)
    assert clock.take_ms() == {"forward_s": 10, "backward_s": 20}
    clock.update(3)
    assert clock.take_ms() == {"optimizer_s": 3}


def test_forward_in_evaluation_mode_counts_once_a_backward_follows(clock: Clock) -> None:
    clock.run(5, batches=1)
    clock.forward(10, is_training=False)
    clock.backward(20)
    assert clock.take_ms() == {"data_wait_s": 5, "forward_s": 10, "backward_s": 20}
    clock.run(5, batches=1)
    clock.forward(10, is_training=False)
    clock.run(7, batches=1)
    clock.forward(1)
    clock.backward(2)
    assert clock.take_ms() == {"data_wait_s": 7, "forward_s": 1, "backward_s": 2}


def test_batch_that_was_loaded_ahead_counts_to_the_step_in_which_it_was(clock: Clock) -> None:
    clock.forward(1)
    clock.backward(2)
    clock.run(9, batches=1)
    assert clock.take_ms() == {"data_wait_s": 9, "forward_s": 1, "backward_s": 2}
    clock.forward(1)
    assert clock.take_ms() == {"forward_s": 1}


def test_steps_that_nobody_times_leave_nothing(clock: Clock) -> None:
    clock.update(4)
    clock.run(9, batches=3)
    clock.phases.forget()
    clock.forward(1)
    assert clock.take_ms() == {"forward_s": 1}
