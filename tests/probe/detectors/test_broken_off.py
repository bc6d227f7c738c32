"""What a signal's handler breaks off in the middle of a judgement leaves detectors that go on judging."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from detector_series import as_batch, lognormal, observe_norms

from probe import detectors
from probe.attach.observation.dead_units import DeadUnits
from probe.detectors import DetectorBank, DetectorThresholds, Observation
from probe.detectors.why import RecentSteps

_FOLDER = str(Path(detectors.__file__).parent)
_WARM, _BATCH, _MORE = 40, 30, 36
"""More than what two quiet refreshes of the medians are apart."""


def steps(start: int, count: int, *, layers: int) -> list[Observation]:
    norms = lognormal(start, steps=count, layers=layers)
    return [observe_norms(start + at, row, loss=1.0 + 0.01 * at) for at, row in enumerate(norms)]


def strike(number: int, function: Callable[[], object], folder: str = _FOLDER) -> bool:
    """Call a function; raise at one of the places at which the interpreter calls handlers, if it is there."""
    left = [number]

    def at_call(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(folder):
            left[0] -= 1
            if left[0] < 0:
                raise TimeoutError

    sys.setprofile(at_call)
    try:
        function()
    except TimeoutError:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("way", ["batch", "other layers", "begun again"])
def test_detectors_judge_on_wherever_a_handler_breaks_them_off(way: str) -> None:
    warm = DetectorBank(DetectorThresholds(warmup_steps=8))
    layers = 9 if way == "other layers" else 5
    for observation in steps(0, _WARM, layers=5):
        warm.observe(observation)
    start = 3 if way == "begun again" else _WARM
    struck, more = steps(start, _BATCH, layers=layers), steps(start + _BATCH, _MORE, layers=layers)
    # One burst: then each step of the batch is looked at.
    struck[10] = observe_norms(struck[10].step, np.full(layers, 1e6), loss=1.0)
    broken_off = 0

    def act(bank: DetectorBank) -> object:
        return bank.observe_batch(as_batch(struck)) if way == "batch" else bank.observe(struck[0])

    for number in range(0, 100_000, 131 if way == "batch" else 7):
        bank = copy.deepcopy(warm)
        if not strike(number, lambda bank=bank: act(bank)):  # type: ignore[misc]
            break
        broken_off += 1
        for observation in more:
            bank.observe(observation)
    assert broken_off > 10


def test_recent_steps_are_held_wherever_a_handler_breaks_their_count_off() -> None:
    warm, broken_off = RecentSteps(), 0
    for observation in steps(0, 100, layers=2):
        warm.note(observation)
    kept = sum(len(held.numbers) for held in warm._held)
    struck, more = steps(100, 4, layers=2), steps(104, 8, layers=2)
    while True:
        recent = copy.deepcopy(warm)
        if not strike(broken_off, lambda recent=recent: [*map(recent.note, struck)]):  # type: ignore[misc]
            break
        broken_off += 1
        for observation in more:
            recent.note(observation)
        assert sum(len(held.numbers) for held in recent._held) == kept
    assert broken_off > 50


def test_units_are_counted_on_wherever_a_handler_breaks_the_count_off() -> None:
    active, broken_off = np.ones(3, dtype=np.bool_), 0
    folder = str(Path(sys.modules[DeadUnits.__module__].__file__ or "").parent)
    while True:
        units = DeadUnits(window=2)
        if not strike(broken_off, lambda units=units: units.note(4, active), folder):  # type: ignore[misc]
            break
        broken_off += 1
        assert [units.note(4, active) for _ in range(3)][-1] == 0
    assert broken_off > 5
