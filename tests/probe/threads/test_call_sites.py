"""Stacks of calls made over and over: the same as a full walk gives, wherever they are made from."""

import sys
from types import FrameType
from typing import Any

from probe.threads.call_sites import CallSites, rejoined
from probe.threads.stacks import RawFrame


def walk(frame: FrameType | None) -> list[RawFrame]:
    """Every frame from here outwards, outermost first."""
    frames: list[RawFrame] = []
    while frame is not None:
        frames.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return frames[::-1]


def first_line(sites: CallSites) -> tuple[list[RawFrame], list[RawFrame]]:
    return sites.take(), walk(sys._getframe())


def second_line(sites: CallSites, deeper: int) -> tuple[list[RawFrame], list[RawFrame]]:
    if deeper:
        return second_line(sites, deeper - 1)
    return sites.take(), walk(sys._getframe())


def same_code_of_another_file(sites: CallSites, file: str) -> list[RawFrame]:
    scope: dict[str, Any] = {"sites": sites}
    exec(compile("taken = sites.take()", file, "exec"), scope)  # noqa: S102 - a constant
    taken: list[RawFrame] = scope["taken"]
    return taken


def assert_same_calls(taken: list[RawFrame], walked: list[RawFrame]) -> None:
    """Equal but for the offset inside the innermost frame: the walk is a later instruction of it."""
    assert taken[:-1] == walked[-len(taken) : -1]
    assert taken[-1][0] is walked[-1][0]


def test_that_every_line_has_its_own_stack_met_in_any_order() -> None:
    sites = CallSites(limit=16)
    for _ in range(3):
        for taken, walked in (first_line(sites), second_line(sites, 0), first_line(sites)):
            assert_same_calls(taken, walked)
            assert len(taken) == min(16, len(walked))


def test_that_no_more_than_the_limit_is_kept() -> None:
    taken, walked = second_line(CallSites(limit=3), deeper=9)
    assert len(taken) == 3
    assert_same_calls(taken, walked)


def test_that_equal_lines_of_different_files_are_told_apart_and_do_not_pile_up() -> None:
    sites = CallSites(limit=4)
    for number in range(200):
        taken = same_code_of_another_file(sites, f"<file {number}>")
        assert taken[-1][0].co_filename == f"<file {number}>"
    assert len(sites._known) <= 64


def test_that_a_deeper_recursion_is_completed_when_it_is_shown() -> None:
    sites = CallSites(limit=64)
    second_line(sites, 0)
    taken, walked = second_line(sites, 5)
    assert_same_calls(rejoined(taken, walked), walked)


def test_that_the_outer_end_is_that_of_the_present_call() -> None:
    sites = CallSites(limit=16)

    def one_step() -> list[RawFrame]:
        taken = forward()
        return rejoined(taken, walk(sys._getframe()))

    def forward() -> list[RawFrame]:
        return sites.take()

    def first_run() -> list[RawFrame]:
        return one_step()

    def second_run() -> list[RawFrame]:
        return one_step()

    first_run()
    codes = [code.co_name for code, _ in second_run()]
    # The line is known from the first run, but what it is called from now is the second.
    assert codes[-3:] == ["second_run", "one_step", "forward"]
    assert "first_run" not in codes


def test_that_a_stack_that_shares_nothing_with_the_present_one_stays() -> None:
    site = [(compile("1", "<elsewhere>", "eval"), 2)]
    assert rejoined(list(site), walk(sys._getframe())) == site
