"""Gradients that are never cleared: found from the third update on, and only then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sampled_runs import OPTIONS, plain

from probe.detectors.accumulation import AccumulationDetector


def alarms(cleared: list[bool | None]) -> list[int]:
    """Steps at which something is found, with one update a step."""
    detector, found = AccumulationDetector(OPTIONS), []
    for step, flag in enumerate(cleared):
        detector.note(step, cleared=flag, subject="head.bias")
        for finding in detector.observe(plain(step)):
            assert (finding.kind, finding.affected) == ("accumulated_gradient", ("head.bias",))
            found.append(step)
    return found


def test_accumulation_is_found_at_the_third_update_in_a_row() -> None:
    assert alarms([None, False, False, False, False]) == [3, 4]


def test_accumulation_over_one_or_two_updates_is_no_fault() -> None:
    assert alarms([None, False, False, True, False, False, True]) == []


def test_accumulation_begins_anew_when_the_steps_go_back() -> None:
    detector = AccumulationDetector(OPTIONS)
    for step in (5, 6, 2, 3):
        detector.note(step, cleared=False, subject="w")
    assert detector.observe(plain(3)) == []


def test_accumulation_of_each_optimizer_counts_by_itself() -> None:
    detector = AccumulationDetector(OPTIONS)
    for step in range(4):
        detector.note(step, cleared=True, subject="g.weight")
        detector.note(step, cleared=False, subject="d.weight")
    assert [finding.affected for finding in detector.observe(plain(4))] == [("d.weight",)]


@given(st.lists(st.sampled_from([True, False, None]), max_size=60))
def test_accumulation_counts_the_updates_since_the_last_clearing(cleared: list[bool | None]) -> None:
    expected, run = [], 0
    for step, flag in enumerate(cleared):
        run = 0 if flag else run + (flag is False)
        if run >= 3:
            expected.append(step)
    assert alarms(cleared) == expected
