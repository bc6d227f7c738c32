"""How fast a loss fell when the run began, from any cuts of its series."""

from __future__ import annotations

import math

import pytest

from probe.detectors.first_fall import FirstFall


def learnt(losses: list[float], size: int = 1) -> FirstFall:
    fall = FirstFall()
    for at in range(0, len(losses), size):
        fall.learn(losses[at : at + size])
    return fall


EXPONENTIAL = [16.0 * 0.9**step for step in range(200)]


@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_half_of_the_fall_is_half_of_its_factors(size: int) -> None:
    # From the median of the first three, 14.4, to 0.16 it is half way at 1.52.
    steps = learnt(EXPONENTIAL, size).half_fall(0.16)
    assert steps == math.ceil(math.log(math.sqrt(14.4 * 0.16) / 16.0) / math.log(0.9)) + 1


def test_single_easy_batch_is_no_fall() -> None:
    losses = [16.0] * 50
    losses[20] = 0.1
    steps = learnt([*losses, *EXPONENTIAL]).half_fall(0.16)
    assert steps is not None and steps > 70


@pytest.mark.parametrize("losses", [[], [1.0, 1.0], [1.0] * 50, [1.0, 0.9, 0.5] * 20, [3.0, 2.0, 0.0, 1e-9]])
def test_run_that_has_hardly_fallen_or_is_not_positive_says_nothing(losses: list[float]) -> None:
    assert learnt(losses).half_fall(0.4) is None


def test_lows_of_a_long_fall_are_few() -> None:
    fall = learnt([16.0 * 0.9999**step for step in range(100_000)], 500)
    assert len(fall._lows) < 600
    assert fall.half_fall(0.16) is not None
