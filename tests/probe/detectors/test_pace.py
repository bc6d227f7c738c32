"""The rank that the others wait for: a warning where it is slow itself, information where it waits too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from probe.detectors.ranks.pace import Pace, PaceWatch
from probe.detectors.ranks.replicas import RankFinding

STEP_S = 0.25


def judged(steps: int, late_s: Callable[[int], float], waited: Callable[[int], float]) -> list[RankFinding]:
    """What is said of two ranks, of which the second is late and waits for processors."""
    noise, watch, found = np.random.default_rng(3).uniform(0.0, 1e-3, (steps, 2)), PaceWatch(2), []
    for step in range(steps):
        for rank in (0, 1):
            before_s = 0.02 + noise[step, rank] + (late_s(step) if rank else 0.0)
            pace = Pace(before_s, STEP_S, before_s + 0.01, waited(step) if rank else 0.0)
            watch.add(rank, step, STEP_S * step, pace)
        found += watch.findings()
    return [*found, *watch.close()]


def told(found: list[RankFinding]) -> list[tuple[int, str, bool]]:
    return [(one.rank, one.severity, one.ended) for one in found]


@pytest.mark.parametrize(
    ("late_s", "waited", "severity"),
    [(0.1, 0.0, "warning"), (0.1, 0.4, "info"), (0.1, 0.1, "warning"), (0.2, 0.9, "info")],
    ids=["slow", "waits as long", "waits a fourth of it", "waits longer"],
)
def test_late_rank_is_information_where_its_wait_explains_it(
    late_s: float, waited: float, severity: str
) -> None:
    found = judged(200, lambda _: late_s, lambda _: waited)
    assert told(found) == [(1, severity, False), (1, severity, True)]


def test_rank_that_becomes_slow_itself_while_it_waits_is_a_warning_of_its_own() -> None:
    found = judged(600, lambda _: 0.1, lambda step: 0.4 if step < 250 else 0.0)
    assert told(found) == [
        (1, "info", False),
        (1, "info", True),
        (1, "warning", False),
        (1, "warning", True),
    ]
    assert "Other programs" not in found[2].message


def test_slow_rank_that_also_waits_later_stays_one_warning() -> None:
    found = judged(600, lambda _: 0.1, lambda step: 0.0 if step < 250 else 0.4)
    assert told(found) == [(1, "warning", False), (1, "warning", True)]


def test_wait_that_pauses_for_a_moment_is_no_warning() -> None:
    found = judged(600, lambda _: 0.1, lambda step: 0.05 if 250 <= step < 270 else 0.4)
    assert told(found) == [(1, "info", False), (1, "info", True)]
