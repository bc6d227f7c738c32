"""Workers of DataLoaders that start anew at each step, or whose memory grows, and healthy ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from probe.detectors.loader_workers import RESTARTS, GrowingWorkers, RestartedWorkers

MIB = 2.0**20


def restarts(begins: Sequence[int | None], *, ends: bool = False) -> list[int]:
    """Numbers of the iterators at which something is said; the newest finished step when each was made."""
    watch, said = RestartedWorkers(), []
    for number, step in enumerate(begins):
        finding = watch.begin(step, workers=2, took_ns=50_000_000)
        if finding is not None:
            assert (finding.kind, finding.severity) == ("performance_degradation", "info")
            assert (
                "its 2 worker processes are started and stopped each time, which takes 50 ms"
                in finding.message
            )
            said.append(number)
        if ends:
            watch.end()
    return said


def test_iterator_of_each_step_is_said_once() -> None:
    assert restarts([None, *range(40)]) == [RESTARTS]


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ([None, *range(40)], True),
        (list(range(0, 400, 10)), False),
        ([step for epoch in range(9) for step in range(100 * epoch, 100 * epoch + RESTARTS)], False),
        ([7] * 40, False),
    ],
    ids=["one batch an epoch", "epochs that break off", "a few now and then", "no steps between"],
)
def test_iterators_of_epochs_are_silent(begins: Sequence[int | None], ends: bool) -> None:
    assert restarts(begins, ends=ends) == []


def growth(levels: Sequence[float], *, workers: int = 2) -> list[int]:
    """Passes at whose ends growth is said; MiB of all workers, first at the beginning of the first pass."""
    watch, said = GrowingWorkers(workers), []
    for number, level in enumerate(levels):
        finding = watch.note(10 * number, level * MIB, samples=1000)
        if finding is not None:
            assert (finding.kind, finding.severity) == ("memory_leak", "warning")
            said.append(number)
    return said


def test_growth_of_each_pass_is_said_once_after_the_second() -> None:
    assert growth([100, 400, 700, 1000, 1300]) == [2]
    assert growth([100, 400, 700, 1000, 1300], workers=1) == [2]


def test_more_workers_may_take_more_passes_to_fill_a_cache() -> None:
    assert growth([100 + 300 * number for number in range(12)], workers=8) == [5]


def test_growth_is_said_once_it_is_large() -> None:
    assert growth([100 + 40 * number for number in range(12)]) == [7]


@pytest.mark.parametrize(
    "levels",
    [
        [100, 700, 705, 710, 706, 712],
        [100, 700, 1000, 1150, 1225, 1262],
        [100, 700, 100, 700, 100, 700],
        [100, 700, 1000, 1000, 1000],
        [100, 110, 120, 130, 140, 150],
    ],
    ids=["cache", "shuffled cache", "freed again", "buffer", "little"],
)
def test_memory_that_is_held_or_small_is_silent(levels: Sequence[float]) -> None:
    assert growth(levels) == []
