"""Hooks that pile up on a module, and modules that have many hooks on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from probe.detectors.hook_counts import HookCounts


def said(counts: Sequence[int]) -> list[int]:
    """Numbers of the counts at which something is said; one count every 20 steps."""
    watch = HookCounts()
    return [
        number
        for number, count in enumerate(counts)
        if watch.note(20 * number, {"": 1, "0": count, "1": 2}) == "0"
    ]


@pytest.mark.parametrize(
    ("counts", "number"),
    [
        ([0, 20, 40, 60, 80, 100], 4),
        ([0, 1000, 1001, 1002, 1003, 1004], 4),
        ([5, 5, 5, 5, 25, 45, 65, 85, 105], 7),
    ],
    ids=["each step", "many at once and more", "later"],
)
def test_hooks_that_pile_up_are_said_once(counts: list[int], number: int) -> None:
    assert said(counts) == [number]


@pytest.mark.parametrize(
    "counts",
    [[300] * 20, [0, *[300] * 20], [0, 60, 0, 60] * 5, list(range(40)), [0, 30, 60, 90, 90, 90]],
    ids=["from the start", "at once", "removed again", "few", "a phase"],
)
def test_hooks_that_end_are_silent(counts: list[int]) -> None:
    assert said(counts) == []


def test_message_has_the_rate_and_the_newest_hook() -> None:
    watch = HookCounts()
    for number in range(5):
        name = watch.note(20 * number, {"body.0": 20 * number})
    assert name == "body.0"
    finding = watch.finding("body.0", 80, newest="train.py:9 in keep")
    assert (finding.kind, finding.severity) == ("memory_leak", "warning")
    assert finding.message == (
        "Hooks pile up on `body.0`: 80 at step 80, 1 more per step, and none is removed; "
        "the newest one is train.py:9 in keep"
    )
