"""Losses that jump for good, or grow steadily to overflow; and those that may well do what they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from detector_series import as_batch, observe_norms

from probe.detectors import DetectorBank, DetectorThresholds, Observation
from probe.detectors.high_loss import ADOPTED, LASTING
from probe.detectors.tails import LARGEST_FACTOR, Tail

STEPS = np.arange(200)
NOISE = np.random.default_rng(0).standard_normal(200)
LEVELS = {
    "flat": 2.0 + 0.1 * NOISE,
    "falls": 0.1 + 2.2 * np.exp(-STEPS / 12.0) + 0.02 * np.abs(NOISE),
    "falls slowly": np.exp(-STEPS / 100.0) * (1.0 + 0.1 * NOISE),
    "negative": -3.0 + 0.2 * NOISE,
    "around 0": 0.05 * NOISE,
}


def steps_of(
    losses: Sequence[float] | np.ndarray,
    norms: Sequence[float] | np.ndarray | None = None,
    elements: Sequence[int] | np.ndarray | None = None,
) -> list[Observation]:
    return [
        replace(
            observe_norms(step, [1.0 if norms is None else float(norms[step])] * 2, loss=float(loss)),
            input_elements=0 if elements is None else int(elements[step]),
        )
        for step, loss in enumerate(losses)
    ]


def found(observations: list[Observation], bank: DetectorBank | None = None) -> dict[str, list[int]]:
    """Steps at which something was found of the loss, by kind."""
    bank = bank or DetectorBank(DetectorThresholds())
    steps: dict[str, list[int]] = {}
    for observation in observations:
        for finding in bank.observe(observation):
            if finding.subject == "loss":
                steps.setdefault(finding.kind, []).append(observation.step)
    return steps


def jumped(name: str, at: int) -> np.ndarray:
    losses = LEVELS[name].copy()
    losses[at:] = losses[at:] * 30.0 if LEVELS[name].mean() > 0.1 else np.abs(losses[at:]) + 60.0
    return losses


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("at", [10, 20, 29, 40, 50])
def test_jump_for_good_within_the_first_steps_is_one_finding_within_five(name: str, at: int) -> None:
    kinds = found(steps_of(jumped(name, at)))
    assert len(kinds) == 1, kinds
    (steps,) = kinds.values()
    assert at <= steps[0] < at + LASTING
    assert steps[-1] <= at + LASTING + ADOPTED


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("lasts", [1, LASTING - 1])
def test_jump_that_comes_back_in_the_first_steps_is_silent(name: str, lasts: int) -> None:
    losses = LEVELS[name].copy()
    losses[12 : 12 + lasts] = jumped(name, 12)[12 : 12 + lasts]
    assert found(steps_of(losses[:60])) == {}


@pytest.mark.parametrize(("rate", "by"), [(1.03, 140), (1.1, 100), (1.3, 80)])
def test_growth_below_what_is_a_spike_is_found_on_its_way_to_overflow(rate: float, by: int) -> None:
    grown = rate ** np.minimum(np.maximum(STEPS - 60, 0), 200)
    kinds = found(steps_of(LEVELS["flat"] * grown, grown))
    assert min(steps[0] for steps in kinds.values()) < by


LONG = np.arange(400)
LONG_NOISE = np.random.default_rng(1).standard_normal(400)


@pytest.mark.parametrize("at", [0, 60, 150])
@pytest.mark.parametrize("level", ["flat", "noisy", "around 0", "negative", "error"])
def test_growth_by_one_percent_a_step_is_found_before_it_is_eightfold(level: str, at: int) -> None:
    grown = 1.01 ** np.maximum(LONG - at, 0)
    losses, norms = {
        "flat": ((2.0 + 0.1 * LONG_NOISE) * grown, grown),
        "noisy": ((2.0 + 0.3 * LONG_NOISE) * grown, grown),
        "around 0": (0.05 * LONG_NOISE + 0.2 * (grown - 1.0), grown),
        "negative": (-1.0 + 0.05 * LONG_NOISE + grown - 1.0, grown),
        "error": ((1.0 + 0.05 * LONG_NOISE) * grown, np.sqrt(grown)),
    }[level]
    kinds = found(steps_of(losses, norms))
    assert list(kinds) == ["loss_divergence"], kinds
    assert at < kinds["loss_divergence"][0] <= at + 208


@pytest.mark.parametrize(
    "curve", ["levels off", "gradient as before", "below the first", "threefold", "restarts"]
)
def test_growth_that_is_none_to_overflow_is_silent(curve: str) -> None:
    grown = 1.01**LONG
    losses, norms = {
        "levels off": (1.0 + 9.0 / (1.0 + np.exp(-(LONG - 200) / 30.0)), np.ones(400)),
        "gradient as before": (grown, np.ones(400)),
        "below the first": (0.02 * grown + 1.5 * np.exp(-LONG / 9.0), grown),
        "threefold": (1.01 ** np.minimum(LONG, 110), grown),
        "restarts": (0.2 + (LONG % 100) / 40.0, 1.0 + LONG % 100),
    }[curve]
    assert "loss_divergence" not in found(steps_of(losses + 0.01 * LONG_NOISE, norms))


@pytest.mark.parametrize("curve", ["linear", "root", "steps", "levels off"])
def test_loss_that_rises_as_that_of_a_gan_is_silent(curve: str) -> None:
    rise = {
        "linear": STEPS / 40.0,
        "root": np.sqrt(STEPS) / 3.0,
        "steps": (STEPS // 50) * 1.0,
        "levels off": 4.0 * (1.0 - np.exp(-STEPS / 50.0)),
    }[curve]
    assert found(steps_of(0.7 + rise + 0.1 * NOISE, 1.0 + rise)) == {}


def test_noise_of_a_loss_that_is_zero_by_construction_is_no_scale() -> None:
    losses = 7e-9 * NOISE
    losses[[80, 120, 121, 150]] = [0.028, 0.01, 0.012, -0.02]
    assert found(steps_of(losses)) == {}
    ramp = losses + np.maximum(STEPS - 100, 0) * 1e-4
    assert found(steps_of(ramp)) == {}


@pytest.mark.parametrize("lasts", [8, 100])
def test_loss_that_was_exactly_zero_has_no_scale(lasts: int) -> None:
    """A margin that all keep, and a penalty that is switched on."""
    losses = np.zeros(200)
    losses[100 : 100 + lasts] = 0.4 + 0.05 * NOISE[:lasts]
    assert "loss_divergence" not in found(steps_of(losses))


def test_small_losses_that_are_never_negative_keep_their_scale() -> None:
    losses = 1e-9 * (1.0 + 0.1 * NOISE)
    losses[100] = 1e-7
    assert list(found(steps_of(losses))) == ["loss_spike"]


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_loss_that_is_summed_over_longer_and_longer_episodes_is_silent(power: float) -> None:
    length = 10 + STEPS * 2
    losses = (length / 10.0) ** power * (1.0 + 0.2 * NOISE)
    growing = [
        replace(one, parameter_norm=np.full(2, 1.0 + one.step / 50.0))
        for one in steps_of(losses, (length / 10.0) ** power, length * 4)
    ]
    assert "loss_divergence" not in found(growing)
    assert found([replace(one, input_elements=0) for one in growing]) or power == 1.0


@pytest.mark.parametrize("name", ["flat", "falls", "around 0"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_find_the_same_as_single_steps(name: str, size: int) -> None:
    observations = steps_of(jumped(name, 20))
    bank, batches = DetectorBank(DetectorThresholds()), dict[str, list[int]]()
    for start in range(0, len(observations), size):
        for index, findings in bank.observe_batch(as_batch(observations[start : start + size])):
            for finding in findings:
                if finding.subject == "loss":
                    batches.setdefault(finding.kind, []).append(start + index)
    assert batches == found(observations)


def test_tail_of_a_series_that_is_nearly_all_far_out_is_a_number() -> None:
    tail = Tail()
    tail.extend([10.0] * 99 + [4.0], 0.0, 10.0)
    assert math.isfinite(tail.factor()) and tail.factor() == pytest.approx(LARGEST_FACTOR)
