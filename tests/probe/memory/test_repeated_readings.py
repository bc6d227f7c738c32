"""What `profile_memory` suspects: growth that goes on at one place; no warm-up, saw-tooth or scatter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from probe.memory.repeated_readings import RepeatedReadings, place_of

MIB = 2.0**20
BASE = 500 * MIB


def suspicions(value: Callable[[int], float], calls: int = 200, label: str = "batch_{}") -> list[list[str]]:
    """What is suspected at each call of a series."""
    readings = RepeatedReadings()
    return [
        readings.add(label.format(call), {"process memory": value(call)}, time_s=float(call))
        for call in range(calls)
    ]


def test_steady_leak_is_suspected_and_sized() -> None:
    found = suspicions(lambda call: BASE + call * MIB)
    first = next(call for call, sentences in enumerate(found) if sentences)
    assert 32 <= first <= 45 and all(found[first:])
    assert found[-1] == [
        "process memory grows at 'batch': by 1.0 MiB from call to call, 194.0 MiB so far, over 195 calls"
    ]


def test_slow_leak_under_scatter_is_suspected_in_time() -> None:
    scatter = np.random.default_rng(3).normal(0, 0.5 * MIB, 4000)
    found = suspicions(lambda call: BASE + call * 0.05 * MIB + scatter[call], calls=4000)
    assert found[-1]


@pytest.mark.parametrize("seed", range(100))
def test_steady_loop_is_never_suspected(seed: int) -> None:
    random = np.random.default_rng(seed)
    scatter = random.normal(0, random.choice([0.0, 0.1, 3.0, 30.0]) * MIB, 500)
    saw = random.choice([0.0, 20.0]) * MIB
    assert not any(suspicions(lambda call: BASE + scatter[call] + saw * (call % 7), calls=500))


@pytest.mark.parametrize(
    "warm_up", [lambda call: min(call, 12) * 20 * MIB, lambda call: 300 * MIB * (1 - 0.8**call)]
)
def test_loop_that_fills_up_at_its_start_is_not_suspected(warm_up: Callable[[int], float]) -> None:
    assert not any(suspicions(lambda call: BASE + warm_up(call)))


def test_leak_that_ends_is_suspected_no_longer() -> None:
    found = suspicions(lambda call: BASE + min(call, 60) * MIB, calls=400)
    assert found[60] and not found[-1]


@pytest.mark.parametrize(
    ("label", "place"), [("batch_12", "batch"), ("epoch 3, batch 7", "epoch, batch"), ("12", "12"), ("", "")]
)
def test_place_is_the_label_without_its_numbers(label: str, place: str) -> None:
    assert place_of(label) == place


def test_places_are_apart_and_bounded() -> None:
    readings = RepeatedReadings()
    for call in range(60):
        assert not readings.add("steady", {"process memory": BASE}, time_s=call)
        last = readings.add("leaking", {"process memory": BASE + call * MIB}, time_s=call)
    assert len(last) == 1 and "'leaking'" in last[0]
    for number in range(1000):
        readings.add("x" * number, {"process memory": BASE}, time_s=number)
    assert len(readings._series) == 512
