"""Slices and their budget, on clocks of the test's own."""

from __future__ import annotations

from probe.memory.time_slices import LookBudget, TimeSlice

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def test_slice_is_over_before_it_is_late() -> None:
    clock = Clock()
    part = TimeSlice(2 * MS, late_ns=3 * MS, clock_ns=clock)
    states = []
    for clock.ns in (0, 2 * MS - 1, 2 * MS, 3 * MS - 1, 3 * MS):
        states.append((part.is_over(), part.is_late()))
    assert states == [(False, False), (False, False), (True, False), (True, False), (True, True)]
    assert part.spent_ns() == 3 * MS


def test_slice_of_the_budget_ends_before_five_milliseconds() -> None:
    clock = Clock()
    part = TimeSlice(clock_ns=clock)
    clock.ns = 5 * MS
    assert part.is_over() and part.is_late()


def test_budget_keeps_looks_under_two_percent_of_the_time() -> None:
    clock = Clock()
    budget, spent = LookBudget(clock_ns=clock), 0
    for clock.ns in range(0, 60_000 * MS, 2 * MS):
        if budget.allows():
            budget.note(4 * MS)
            spent += 4 * MS
        if clock.ns > 1000 * MS:
            assert spent <= 0.02 * clock.ns
    assert spent > 0.01 * clock.ns


def test_budget_after_a_long_time_allows_some_slices_and_no_more() -> None:
    clock = Clock()
    budget = LookBudget(clock_ns=clock)
    clock.ns = 3600 * 1000 * MS
    slices = 0
    while budget.allows():
        budget.note(3 * MS)
        slices += 1
    assert 2 <= slices <= 10


def test_budget_allows_the_first_slice_at_once() -> None:
    assert LookBudget(clock_ns=Clock()).allows()


def test_budget_of_a_process_that_has_lived_allows_a_whole_look_at_once() -> None:
    clock = Clock()
    slices = {}
    for lived_s in (0, 2):
        budget = LookBudget(clock_ns=clock, lived_ns=lived_s * 1000 * MS)
        slices[lived_s] = 0
        while budget.allows():
            budget.note(3 * MS)
            slices[lived_s] += 1
    assert slices == {0: 1, 2: 9}
