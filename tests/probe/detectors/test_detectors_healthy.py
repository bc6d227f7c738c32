"""Healthy runs give no finding: small models really trained, and synthetic series easy to get wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from detector_series import (
    TRAININGS,
    describe,
    lognormal,
    observe_norms,
    on_one_thread,
    run_detectors,
    train_past_convergence,
)
from thinned import some

from probe.detectors import Observation


@pytest.mark.parametrize("seed", some([0, 1, 7], 1))
@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_detectors_real_training_is_quiet(name: str, seed: int) -> None:
    findings = run_detectors(TRAININGS[name](seed))
    assert not findings, describe(findings)


def test_detectors_real_training_far_past_convergence_is_quiet() -> None:
    """Gradients fall by 1e6, then burst by 1e3 while they are still 1e-3 of what they were."""
    observations = on_one_thread(lambda seed: train_past_convergence(seed, steps=4900))(1)
    norms = np.array([observation.total_grad_norm for observation in observations])
    assert norms[3000:].min() < 1e-5 * norms[:30].min()
    findings = run_detectors(observations)
    assert not findings, describe(findings)


def test_detectors_resumed_converged_run_is_quiet() -> None:
    """No level to have come down from is known, but what a norm of 5e-7 may do to weights of norm 4."""
    findings = run_detectors(resumed(weights=4.0))
    assert not findings, describe(findings)


def test_detectors_resumed_run_of_small_weights_is_not_taken_for_converged() -> None:
    assert [(s, f.kind) for s, f in run_detectors(resumed(weights=0.01))] == [(150, "gradient_explosion")]


def resumed(*, weights: float) -> list[Observation]:
    """Gradients of norm 1e-8 from the first step on, one of them fifty times as large."""
    steps, level = [], next(lognormal(0, steps=1, layers=1))
    for i, norms in enumerate(lognormal(0, steps=200, layers=1)):
        plain = observe_norms(i, 1e-8 * norms / level * (50.0 if i == 150 else 1.0))
        steps.append(replace(plain, parameter_norm=np.array([weights]) if i % 10 == 0 else None))
    return steps


def test_detectors_loss_noise_of_a_converged_run_is_quiet_for_good() -> None:
    """A loss of 1e-9 that was 2 some 9,000 steps ago jumps to 1e-3; a jump to 0.1 is none of noise."""
    losses = np.maximum(2.0 * np.exp(-np.arange(10_000) / 50.0), 1e-9)
    losses[9_900], losses[9_950] = 1e-3, 0.1
    steps = [observe_norms(i, [1.0], loss=float(loss)) for i, loss in enumerate(losses)]
    assert [(s, f.kind) for s, f in run_detectors(steps)] == [(9_950, "loss_spike")]


@pytest.mark.parametrize("seed", some([0, 1, 2], 1))
def test_detectors_heavy_tailed_losses_and_norms_are_quiet(seed: int) -> None:
    losses = np.random.default_rng(seed).lognormal(0.0, 1.0, 1500)
    steps = (
        observe_norms(i, n, loss=losses[i]) for i, n in enumerate(lognormal(seed, steps=1500, sigma=1.0))
    )
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_loss_falling_to_noise_is_quiet() -> None:
    random = np.random.default_rng(0)
    losses = 2.3 * np.exp(-np.arange(2000) / 150) * random.lognormal(0, 0.5, 2000) + 1e-4 * random.random(
        2000
    )
    findings = run_detectors(observe_norms(i, [1.0, 2.0], loss=x) for i, x in enumerate(losses))
    assert not findings, describe(findings)


def test_detectors_negative_and_zero_crossing_losses_are_quiet() -> None:
    random = np.random.default_rng(0)
    losses = np.linspace(3.0, -40.0, 1500) + random.standard_normal(1500)
    findings = run_detectors(observe_norms(i, [1.0], loss=x) for i, x in enumerate(losses))
    assert not findings, describe(findings)


def test_detectors_margin_loss_that_is_mostly_zero_is_quiet() -> None:
    random = np.random.default_rng(0)
    losses = random.exponential(1.0, 1500) * (random.random(1500) < np.linspace(0.9, 0.1, 1500))
    findings = run_detectors(
        observe_norms(i, np.array([1.0, 3.0]) * (x > 0), loss=float(x)) for i, x in enumerate(losses)
    )
    assert not findings, describe(findings)


def test_detectors_margin_loss_that_has_become_zero_for_most_batches_is_quiet() -> None:
    """What is left over is small beside what the loss was; as much as that was is a spike."""
    rng = np.random.default_rng(5)
    early = [0.3 * float(rng.lognormal(0.0, 0.2)) for _ in range(120)]
    late = [0.0 if step % 190 else 0.08 for step in range(1, 400)]
    observations = [
        replace(observe_norms(step, np.ones(2)), loss=loss) for step, loss in enumerate([*early, *late])
    ]
    findings = run_detectors(observations)
    assert not findings, describe(findings)
    spike = replace(observe_norms(len(observations), np.ones(2)), loss=0.6)
    assert [finding.kind for _, finding in run_detectors([*observations, spike])] == ["loss_spike"]


def schedule(step: int) -> float:
    """Learning-rate schedules move gradient norms by such factors."""
    warm_up = min(1.0, 0.05 + step / 500)
    cosine = 0.5 * (1 + math.cos(math.pi * step / 5000)) + 1e-3
    return cosine / warm_up


@pytest.mark.parametrize(
    ("label", "level"),
    [
        ("warm-up and cosine", schedule),
        ("steps", lambda step: 10.0 ** -(step // 1000)),
        ("falling by 1e-3", lambda step: 1e-3 ** (step / 5000)),
        ("growing by 1e3", lambda step: 1e3 ** (step / 5000)),
    ],
)
def test_detectors_levels_that_follow_a_schedule_are_quiet(label: str, level: object) -> None:
    assert callable(level)
    norms = lognormal(3, steps=5000, sigma=0.3)
    findings = run_detectors(observe_norms(i, level(i) * n, loss=level(i)) for i, n in enumerate(norms))
    assert not findings, f"{label}: {describe(findings)}"


def test_detectors_constant_series_is_quiet() -> None:
    findings = run_detectors(observe_norms(i, [1.0, 0.5], loss=2.0) for i in range(400))
    assert not findings, describe(findings)


def test_detectors_series_constant_up_to_rounding_is_quiet() -> None:
    random = np.random.default_rng(0)
    steps = (
        observe_norms(i, 1.0 + 1e-7 * random.random(4), loss=2.0 + 1e-7 * random.random()) for i in range(400)
    )
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_layers_that_take_turns_are_quiet() -> None:
    """One of five steps trains the second half, at a level 1e4 higher."""

    def steps() -> Iterator[Observation]:
        for i, norms in enumerate(lognormal(0, steps=1000, layers=8)):
            first = np.arange(8) < 4
            yield observe_norms(i, np.where(first, norms, 1e4 * norms), missing=first == (i % 5 == 4))

    findings = run_detectors(steps())
    assert not findings, describe(findings)


def test_detectors_all_parameters_missing_is_quiet() -> None:
    missing = np.ones(3, dtype=np.bool_)
    findings = run_detectors(observe_norms(i, [0.0] * 3, missing=missing) for i in range(200))
    assert not findings, describe(findings)


def test_detectors_frozen_layer_is_quiet() -> None:
    frozen = np.array([True, False, False])
    findings = run_detectors(observe_norms(i, [0.0, 1.0, 2.0], missing=frozen) for i in range(200))
    assert not findings, describe(findings)


def test_detectors_zero_bias_in_a_learning_layer_is_quiet() -> None:
    steps = (observe_norms(i, [1.0, 0.0, 2.0, 0.0], per_layer=2) for i in range(200))
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_layer_of_rounding_noise_is_quiet() -> None:
    """A bias of its own in front of a softmax: analytically zero, 1e-9 with wild scatter in practice."""
    random = np.random.default_rng(0)
    steps = (observe_norms(i, [1.0, 1e-9 * random.lognormal(0, 4)]) for i in range(1500))
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_zero_initialised_branch_is_quiet() -> None:
    """A LoRA pair: the gradient of A is exactly 0 until the warming-up learning rate has moved B."""
    steps = (observe_norms(i, [0.0 if i < 8 else 1e-4 * i, 1.0]) for i in range(300))
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_restarted_run_is_quiet() -> None:
    """A second fit in the same process begins again at step 0, with another level."""
    steps = [observe_norms(i, 1e-3 * n, loss=0.01) for i, n in enumerate(lognormal(0, steps=200))]
    steps += [observe_norms(i, 1e3 * n, loss=5.0) for i, n in enumerate(lognormal(1, steps=200))]
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_converging_whole_model_is_quiet() -> None:
    """Every norm falls by a tenth each step: 1e-3 of the median within the window, yet gradual."""
    steps = (observe_norms(i, 0.9**i * np.array([1.0, 4.0]), loss=0.5 + 0.81**i) for i in range(300))
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_new_model_layout_starts_anew() -> None:
    steps = [observe_norms(i, [1e-3] * 3) for i in range(100)]
    steps += [observe_norms(i, [1e3] * 4) for i in range(100, 200)]
    findings = run_detectors(steps)
    assert not findings, describe(findings)


def test_detectors_margin_loss_with_few_batches_left_is_quiet() -> None:
    """Triplets that are met sooner or later: a rare loss is no larger than the first ones were."""
    random = np.random.default_rng(0)
    share = np.concatenate([np.full(40, 0.55), np.full(560, 0.04)])
    losses = (random.exponential(0.02, 600) * (random.random(600) < share)).clip(0.0, 0.1)
    losses[:2] = 0.13, 0.11
    findings = run_detectors(observe_norms(i, [1.0], loss=float(x)) for i, x in enumerate(losses))
    assert not findings, describe(findings)


@pytest.mark.parametrize("layers", [1, 6])
def test_detectors_gradients_that_fall_and_come_back_are_quiet(layers: int) -> None:
    """Batches of two that are learnt or not: ever more of them have next to no gradient, in all layers."""
    random = np.random.default_rng(3)
    steps = []
    for i, norms in enumerate(lognormal(8, steps=1500, layers=6)):
        is_learnt = random.random() < min(max(i - 200, 0) / 400, 0.9)
        fallen = np.arange(6) < layers
        steps.append(observe_norms(i, np.where(fallen & is_learnt, 1e-4, 1.0) * norms))
    findings = run_detectors(steps)
    assert not findings, describe(findings)
