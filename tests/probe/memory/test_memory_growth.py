"""Growth of memory in synthetic series: what goes on is found, what ends, swings or dies down is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.detectors.memory import WINDOW, Growth, GrowthDetector, LeakJudge, LeakLimits

MIB = 2.0**20
START = 400 * MIB
SECONDS = 3000
FREE = 20 * 1024 * MIB


def judged(
    values: Iterable[float], *, steps_each: int = 10, free: float = FREE
) -> tuple[list[int], list[int]]:
    """One reading a second: at which growth is seen, and at which it is a leak."""
    detector, judge = GrowthDetector(), LeakJudge()
    growing, leaking = [], []
    for second, value in enumerate(values):
        growth = detector.add(second * steps_each, float(second), value)
        if growth is not None:
            growing.append(second)
        if judge.is_leak(growth, step=second * steps_each, free_bytes=free):
            leaking.append(second)
    return growing, leaking


def growth_of(values: Iterable[float]) -> Growth | None:
    """The growth at the last reading, one a step."""
    detector = GrowthDetector()
    found = None
    for step, value in enumerate(values):
        found = detector.add(step, float(step), value)
    return found


def noise(scale: float, seed: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(SECONDS)


TIME = np.arange(SECONDS, dtype=np.float64)
HEALTHY: dict[str, np.ndarray] = {
    "constant": START + 0 * TIME,
    "scatter": START + noise(20 * MIB),
    "sudden peaks": START + np.abs(np.random.default_rng(1).standard_cauchy(SECONDS)).clip(0, 50) * 40 * MIB,
    "garbage collection": START + (TIME % 50) * 6 * MIB,
    "list emptied every epoch": START + (TIME % 300) * MIB,
    "plateau after growth": START + np.minimum(TIME, 200) * 3 * MIB,
    "cache that fills": START + 1000 * MIB * (1 - np.exp(-TIME / 300)),
    "five jumps that end": START + np.minimum(TIME // 100, 5) * 100 * MIB,
    "logarithm": START + 100 * MIB * np.log1p(TIME),
    "square root": START + 10 * MIB * np.sqrt(TIME),
    "random walk": START + np.cumsum(noise(MIB)),
    "longer and longer sequences": START + np.minimum(TIME, 400) * MIB * np.abs(np.sin(TIME)),
}
LEAKS: dict[str, np.ndarray] = {
    "steady": START + TIME * MIB,
    "under scatter": START + TIME * MIB + noise(20 * MIB),
    "under a saw-tooth": START + TIME * MIB + (TIME % 60) * 5 * MIB,
    "that begins late": START + np.maximum(TIME - 1000, 0) * MIB,
    "in jumps": START + (TIME // 20) * 20 * MIB,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_growth_healthy_series_no_leak(name: str) -> None:
    _, leaking = judged(HEALTHY[name])
    assert leaking == []


@pytest.mark.parametrize("name", ["constant", "scatter", "garbage collection", "sudden peaks"])
def test_growth_swinging_series_hardly_ever_suspicious(name: str) -> None:
    growing, _ = judged(HEALTHY[name])
    # Within one tooth it does grow; over several it does not.
    allowed = SECONDS * 0.7 if name == "garbage collection" else SECONDS * 0.005
    assert len(growing) <= allowed


@pytest.mark.parametrize("name", LEAKS)
def test_growth_leak_found_after_half_a_gibibyte(name: str) -> None:
    _, leaking = judged(LEAKS[name])
    assert leaking
    grown = LEAKS[name][leaking[0]] - START
    assert grown + 60 * 5 * MIB >= 512 * MIB
    assert leaking[0] < 2900


def test_growth_pace_is_the_series_slope() -> None:
    growth = growth_of(START + 3000.0 * step for step in range(60))
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(3000.0)
    assert growth.bytes_per_second == pytest.approx(3000.0)
    assert growth.recent_per_step == pytest.approx(3000.0)
    # The baseline is the first reading after five steps of warm-up.
    assert growth.grown == pytest.approx(3000.0 * (59 - 5))


def test_growth_that_dies_down_is_told_by_steps_however_rarely_it_is_read() -> None:
    """Readings of a loop that keeps nothing, as they came: histories fill, and are read ever more rarely."""
    kib = [0, 11, 24, 24, 34, 34, 35, 41, 57, 81, 92, 96, 99, 105, 106, 110]
    steps = [5, 21, 51, 57, 69, 89, 101, 124, 397, 1236, 2022, 2812, 3569, 4354, 5151, 5874]
    detector = GrowthDetector()
    found = [detector.add(0, 0.0, START)]
    for step, grown in zip(steps, kib, strict=True):
        found.append(detector.add(step, float(step), START + 1024.0 * grown))
    growth = found[-1]
    assert growth is not None
    assert not growth.keeps_pace


def test_growth_seen_at_the_sixteenth_reading_after_the_warm_up() -> None:
    detector = GrowthDetector()
    found = [detector.add(step, float(step), START + 8000.0 * step) for step in range(40)]
    assert found.index(next(growth for growth in found if growth)) == 5 + WINDOW - 1


def test_growth_below_the_floor_is_none() -> None:
    assert growth_of(START + 500.0 * step for step in range(20)) is None


def test_growth_one_jump_is_none() -> None:
    assert growth_of(START + (64 * MIB if step > 20 else 0.0) for step in range(30)) is None


AT_THE_START: dict[str, list[int]] = {
    "a thread at the 11th step": [
        *(3184, 528, 496, 288, 1040, 1696, 12896, 192, 32, 1696, 80, 1200, 4736, 464, 224, 35216),
        *(3424, 848, 2400, 352),
    ],
    "a thread at the 12th and 14th": [
        *(2624, 976, 912, 464, 1248, 304, 1328, 4256, 448, 7712, -32, 1664, 5968, 512, 240, 42944),
        *(2880, 5296, 816, 57568),
    ],
    "a thread at the 13th and 14th": [
        *(2032, 880, 1392, 736, 1776, 320, 1232, 256, 7472, 9008, 160, 2960, 5920, 576, 208, 43568),
        *(3136, 976, 800, 56624),
    ],
    "a thread at the 15th": [
        *(1200, 2224, 528, 256, 1504, 928, 1296, 256, 80, 432, 13520, 2464, 6672, 512, 64, 43456),
        *(2896, 768, 384, 256),
    ],
    "a thread at the 26th": [
        *(2400, 2096, 528, 288, 2032, 256, 1264, 320, 256, 224, 288, 1952, 4784, 560, 192, 39264),
        *(3104, 48, 416, 48, -80, 13088, 1792, 368),
    ],
}
"""Bytes more at each step from the fifth on, as they came on a busy machine in runs that keep nothing: C
begins to follow at the 20th, and what other threads need at their first turn falls into the same window."""


@pytest.mark.parametrize("name", AT_THE_START)
def test_growth_jumps_of_a_start_on_a_busy_machine_are_none(name: str) -> None:
    detector = GrowthDetector(floor=64 * 1024.0)
    values = START + np.cumsum([0, 22000, 2800, 2600, 700, *AT_THE_START[name]])
    found = [detector.add(step, float(step), float(value)) for step, value in enumerate(values)]
    assert found == [None] * len(values)


@settings(max_examples=200, deadline=None)
@given(
    jumps=st.lists(st.tuples(st.integers(0, 79), st.floats(1.0, 1e3)), max_size=3),
    seed=st.integers(0, 10_000),
)
def test_growth_three_jumps_of_any_size_at_any_time_are_none(
    jumps: list[tuple[int, float]], seed: int
) -> None:
    values = START + np.cumsum(np.random.default_rng(seed).uniform(0, 2000, 80))
    for at, size_mib in jumps:
        values[at:] += size_mib * MIB
    detector = GrowthDetector(floor=64 * 1024.0)
    found = [detector.add(step, float(step), value) for step, value in enumerate(values)]
    assert [growth for growth in found if growth is not None and growth.scale == 0] == []


@pytest.mark.parametrize(("every", "within"), [(1, 21), (2, 24), (3, 40), (5, 90), (10, 90), (20, 360)])
def test_growth_in_jumps_that_go_on_is_found(every: int, within: int) -> None:
    detector = GrowthDetector(floor=64 * 1024.0)
    found = [detector.add(step, float(step), START + (step // every) * MIB) for step in range(within)]
    assert any(growth is not None and growth.keeps_pace for growth in found)


def test_growth_steps_restart_forgets() -> None:
    detector = GrowthDetector()
    for step in range(40):
        detector.add(step, float(step), START + MIB * step)
    assert detector.add(0, 41.0, START + 50 * MIB) is None
    assert detector.add(1, 42.0, START + 51 * MIB) is None


def test_growth_reading_that_is_not_finite_is_left_out() -> None:
    values = [START + 8000.0 * step if step != 12 else math.nan for step in range(40)]
    growth = growth_of(values)
    assert growth is not None and math.isfinite(growth.bytes_per_step)


def test_growth_not_judged_still_counts_later() -> None:
    detector = GrowthDetector()
    found = [detector.add(step, float(step), START + 8000.0 * step, judge=step == 39) for step in range(40)]
    assert found[39] is not None and found[:39] == [None] * 39


def test_judge_slow_leak_that_does_not_fill_the_memory_is_none() -> None:
    # 0.01 MiB/s is 864 MiB a day, and 20 GiB are free.
    slow = LeakJudge(LeakLimits(grown_bytes=10 * MIB, grown_fraction=0.0))
    detector = GrowthDetector()
    verdicts = [
        slow.is_leak(
            detector.add(second, float(second), START + 0.01 * MIB * second), step=second, free_bytes=FREE
        )
        for second in range(SECONDS)
    ]
    assert not any(verdicts)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), draw=st.sampled_from(["normal", "laplace", "t", "lognormal"]))
def test_judge_stationary_noise_never_a_leak(seed: int, draw: str) -> None:
    generator = np.random.default_rng(seed)
    sources: dict[str, Callable[[], np.ndarray]] = {
        "normal": lambda: generator.standard_normal(1500),
        "laplace": lambda: generator.laplace(size=1500),
        "t": lambda: generator.standard_t(3, 1500),
        "lognormal": lambda: generator.lognormal(size=1500),
    }
    _, leaking = judged(START + 50 * MIB * sources[draw]())
    assert leaking == []


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 100.0), shift=st.floats(0.0, 1e10))
def test_growth_scale_and_shift_change_no_verdict(seed: int, scale: float, shift: float) -> None:
    values = START + 0.2 * MIB * np.arange(80) + MIB * np.random.default_rng(seed).standard_normal(80)
    plain, changed = GrowthDetector(floor=0.0), GrowthDetector(floor=0.0)
    for step, value in enumerate(values):
        first = plain.add(step, float(step), value)
        second = changed.add(step, float(step), scale * value + shift)
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert second.bytes_per_step == pytest.approx(scale * first.bytes_per_step, rel=1e-3)


def paces(values: Iterable[float]) -> list[bool]:
    """Whether each growth that is seen after step 150 keeps its pace, one reading a step."""
    detector = GrowthDetector()
    found = [detector.add(step, float(step), value) for step, value in enumerate(values)]
    return [growth.keeps_pace for growth in found[150:] if growth is not None]


@pytest.mark.parametrize("at", [60, 100, 140])
def test_growth_keeps_its_pace_beside_an_allocation_that_it_began_with(at: int) -> None:
    steps = np.arange(400)
    steady = START + np.maximum(steps - 100, 0) * 0.2 * MIB
    assert any(paces(steady + 200 * MIB * (steps >= at)))


@pytest.mark.parametrize(
    "values",
    [
        START + 200 * MIB * (np.arange(400) >= 100) + 60 * MIB * (1 - np.exp(-np.arange(400) / 60)),
        START + 300 * MIB * (np.arange(400) // 10 % 2) + np.minimum(np.arange(400), 60) * MIB,
    ],
    ids=["a cache fills beside a table", "peaks beside a buffer"],
)
def test_growth_that_dies_down_keeps_no_pace_beside_jumps(values: np.ndarray) -> None:
    assert not any(paces(values))


def test_jump_that_is_given_back_is_none() -> None:
    steps = np.arange(200)
    growth = growth_of(START + steps * 0.2 * MIB + 200 * MIB * ((steps >= 60) & (steps < 90)))
    assert growth is not None
    assert growth.jumped == 0.0
