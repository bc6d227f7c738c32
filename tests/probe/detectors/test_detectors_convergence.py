"""Losses that never fall, that have stopped to, and validation losses that rise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sampled_runs import NOISES, OPTIONS, find, module_sample, plain

from probe.detectors.convergence import PlateauDetector, level_of
from probe.detectors.overfitting import OverfittingDetector
from probe.detectors.sample import Sample


def losses_of(
    losses: Sequence[float] | np.ndarray, *, classes: int | None = None, every: int = 1
) -> list[Sample]:
    """A sample every so many steps; the first one knows how many classes the model tells apart."""
    modules = None if classes is None else module_sample(("Net",), ("",), units=[float(classes)])
    return [
        plain(step, loss=float(loss), modules=modules if step == 0 else None)
        for step, loss in enumerate(losses)
        if step % every == 0
    ]


def plateaus(samples: Sequence[Sample]) -> list[tuple[int, str]]:
    found = find(samples, PlateauDetector(OPTIONS))
    return [(step, finding.severity) for step, finding in found]


def noise(count: int, size: float, seed: int = 0) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(count)


def test_level_is_the_median_with_its_standard_error() -> None:
    # Of many medians of 50 normal values.
    values = np.random.default_rng(0).standard_normal((4000, 50))
    medians, errors = np.array([level_of(row) for row in values]).T
    assert medians.std() == pytest.approx(errors.mean(), rel=0.1)


# ------------------------------------------------------------------------------------------------ plateau


@pytest.mark.parametrize(("every", "latest"), [(1, 312), (5, 340), (10, 480)])
def test_plateau_at_the_level_of_guessing_is_found(every: int, latest: int) -> None:
    losses = np.concatenate([[2.6, 2.4, 2.35, 2.33], math.log(10) + noise(900, 0.03)])
    found = plateaus(losses_of(losses, classes=10, every=every))
    assert found[0][1] == "warning"
    assert 300 <= found[0][0] <= latest


PLATEAU = math.log(2) + noise(4000, 0.01)


def stuck(
    *, update: float | None, gradients: np.ndarray | None = None, losses: np.ndarray = PLATEAU
) -> list[tuple[int, str]]:
    """Of a plateau of two classes whose weights change by so much, every tenth step of it."""
    given = losses_of(losses, classes=2, every=10)
    ratio = None if update is None else np.array([update, np.nan])
    return plateaus(
        [
            replace(
                sample,
                update_ratio=ratio,
                is_matrix=np.array([True, False]) if sample.step == 0 else None,
                total_grad_norm=0.3 if gradients is None else float(gradients[sample.step]),
            )
            for sample in given
        ]
    )


def test_plateau_whose_weights_change_is_information_for_ten_times_as_long() -> None:
    found = stuck(update=1e-2)
    assert 300 <= found[0][0] <= 480 and found[0][1] == "info"
    assert {severity for step, severity in found if step < 3000} == {"info"}
    assert {severity for step, severity in found if step > 3300} == {"warning"}


@pytest.mark.parametrize("why", ["updates of 0.002 %", "no update", "gradients vanished", "no gradient"])
def test_plateau_with_a_sign_that_nothing_is_trained_is_a_warning(why: str) -> None:
    vanished = 0.3 * np.exp(-np.arange(4000) / 50.0)
    found = {
        "updates of 0.002 %": lambda: stuck(update=2e-5),
        "no update": lambda: stuck(update=None),
        "gradients vanished": lambda: stuck(update=1e-2, gradients=vanished),
        "no gradient": lambda: stuck(update=1e-2, gradients=np.zeros(4000)),
    }[why]()
    assert found[0][1] == "warning"


def test_error_that_has_not_moved_from_the_start_is_judged_in_the_same_way() -> None:
    error = 1.0 + noise(1500, 0.01)
    assert {severity for _, severity in stuck(update=1e-3, losses=error)} == {"info"}
    assert {severity for _, severity in stuck(update=1e-5, losses=error)} == {"warning"}


def test_plateau_at_another_level_than_guessing_is_silent() -> None:
    losses = np.concatenate([[2.6, 2.4, 2.2, 2.0, 1.9], 1.8 + noise(900, 0.03)])
    assert plateaus(losses_of(losses, classes=10)) == []


def test_plateau_at_guessing_that_still_falls_is_silent() -> None:
    losses = math.log(10) * (1.01 - 2e-5 * np.arange(900)) + noise(900, 0.005)
    assert plateaus(losses_of(losses, classes=10)) == []


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_plateau_from_the_first_step_on_is_found(scale: float, sign: float) -> None:
    losses = scale * sign * (7.0 + noise(600, 0.02))
    found = plateaus(losses_of(losses))
    assert found[0][1] == "warning"
    assert 300 <= found[0][0] <= 312


STEPS = np.arange(1500)
SILENT = {
    "falls": 2.3 * np.exp(-STEPS / 400.0) + noise(1500, 0.05),
    "falls slowly": 2.3 - 2e-4 * STEPS + noise(1500, 0.01),
    "fell at first": np.where(STEPS < 30, 2.3 - 0.05 * STEPS, 0.8) + noise(1500, 0.01),
    "rises": 2.0 + 1e-4 * STEPS + noise(1500, 0.01),
    "noise of a policy": noise(1500, 1.0),
    "noisy and flat": 2.0 + noise(1500, 0.5),
    "wanders": 2.0 + np.cumsum(noise(1500, 0.005)),
    "converged": np.maximum(2.0 * np.exp(-STEPS / 20.0), 1e-9) * (1.0 + noise(1500, 0.2)),
}


@pytest.mark.parametrize("name", SILENT)
def test_plateau_is_silent_on_what_is_healthy(name: str) -> None:
    assert plateaus(losses_of(SILENT[name])) == []


@pytest.mark.parametrize("name", sorted(NOISES))
def test_plateau_in_noise_is_silent(name: str) -> None:
    losses = 10.0 + NOISES[name](np.random.default_rng(2), 10_000)
    assert plateaus(losses_of(losses, every=4)) == []


def test_plateau_after_learning_is_information() -> None:
    steps = np.arange(4000)
    losses = 1.0 + 2.0 * np.exp(-steps / 200.0) + noise(4000, 0.01)
    found = plateaus(losses_of(losses, every=4))
    assert {severity for _, severity in found} == {"info"}
    assert found[0][0] >= 2100


def test_plateau_of_a_converged_run_is_silent_for_good() -> None:
    losses = np.where(np.arange(4000) < 450, 2.0, 1e-4) * (1.0 + noise(4000, 0.1))
    assert plateaus(losses_of(losses, every=4)) == []


# -------------------------------------------------------------------------------------------- overfitting


def validated(
    training: np.ndarray, validation: np.ndarray, *, every: int = 20, name: str = "log/val_loss"
) -> list[Sample]:
    """A sample every step, an evaluation every so many."""
    return [
        plain(
            step,
            loss=float(loss),
            scalars={name: float(validation[step // every])} if step % every == every - 1 else {},
        )
        for step, loss in enumerate(training)
    ]


def overfits(samples: Sequence[Sample]) -> list[int]:
    return [step for step, _ in find(samples, OverfittingDetector(OPTIONS))]


FALLING = np.exp(-np.arange(800) / 200.0) + noise(800, 0.01)
PARABOLA = 1.0 + 0.02 * np.square(np.arange(40) - 12.0) / 12.0
"""Validation losses with their minimum, 1, at the 13th evaluation."""


@pytest.mark.parametrize("name", ["val_loss", "log/val_loss", "log/eval/loss"])
def test_overfitting_is_found_when_three_evaluations_are_a_tenth_above_the_minimum(name: str) -> None:
    found = find(validated(FALLING, PARABOLA, name=name), OverfittingDetector(OPTIONS))
    above = np.flatnonzero((PARABOLA > 1.1) & (np.arange(40) > 12))[2]
    assert 0 <= found[0][0] - (above * 20 + 19) <= 40
    assert found[0][1].baseline is not None and found[0][1].baseline["step"] == 12 * 20 + 19


def test_overfitting_stays_known_between_evaluations() -> None:
    found = overfits(validated(FALLING, PARABOLA))
    assert found == list(range(found[0], 800))


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_overfitting_does_not_depend_on_the_unit_of_the_loss(scale: float) -> None:
    assert overfits(validated(scale * FALLING, scale * PARABOLA)) == overfits(validated(FALLING, PARABOLA))


RANDOM = np.random.default_rng(3)
HEALTHY = {
    "both fall": validated(FALLING, np.exp(-np.arange(40) / 10.0)),
    "noisy validation": validated(FALLING, 1.0 + 0.3 * RANDOM.standard_normal(40)),
    "a little": validated(FALLING, 1.0 + 0.002 * np.arange(40)),
    "one outlier": validated(FALLING, np.where(np.arange(40) == 20, 5.0, 1.0 - 0.001 * np.arange(40))),
    "training rises too": validated(FALLING[::-1], PARABOLA),
    "training stands still": validated(1.0 + noise(800, 0.01), PARABOLA),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_overfitting_is_silent_on_what_is_healthy(name: str) -> None:
    assert overfits(HEALTHY[name]) == []


@pytest.mark.parametrize("name", sorted(NOISES))
def test_overfitting_in_noise_is_silent(name: str) -> None:
    random = np.random.default_rng(4)
    training = np.exp(-np.arange(5000) / 1000.0) + noise(5000, 0.01)
    validation = 10.0 + NOISES[name](random, 500)
    assert overfits(validated(training, validation, every=10)) == []
