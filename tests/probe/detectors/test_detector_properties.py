"""Properties of the detectors as a whole: how often noise alarms them, units that do not matter, delays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled_runs import NOISES, OPTIONS, find, module_sample, plain

from probe.detectors import DetectorThresholds, ObservationBatch
from probe.detectors.activation_values import DegenerateOutputDetector
from probe.detectors.activations import DeadUnitDetector, SaturationDetector
from probe.detectors.bank import DetectorBank
from probe.detectors.convergence import PlateauDetector
from probe.detectors.jumps import Jump
from probe.detectors.memory import GrowthDetector, LeakJudge
from probe.detectors.overfitting import OverfittingDetector
from probe.detectors.updates import UpdateRatioDetector

Floats = npt.NDArray[np.float64]
STEPS = 10_000
LAYERS = 4
BATCH = 50


def batch_of(losses: Floats, norms: Floats, first: int = 0) -> ObservationBatch:
    """Successive steps of a model with one parameter in each layer; norms are (steps, layers)."""
    names = tuple(f"layers.{index}" for index in range(norms.shape[1]))
    return ObservationBatch(
        steps=range(first, first + len(losses)),
        losses=losses.tolist(),
        total_grad_norms=np.sqrt((norms**2).sum(axis=1)).tolist(),
        grad_norm=norms,
        grad_max_abs=norms / 2.0,
        missing=None,
        parameter_norms=[None] * len(losses),
        parameter_names=names,
        layer_names=names,
        layer_of=np.arange(norms.shape[1], dtype=np.intp),
    )


def judge(losses: Floats, norms: Floats) -> tuple[list[tuple[int, str]], list[Jump]]:
    """(step, kind) of everything that a fresh bank finds, and its suspicions."""
    bank, found, jumps = DetectorBank(DetectorThresholds()), [], []
    for start in range(0, len(losses), BATCH):
        part = slice(start, start + BATCH)
        for index, findings in bank.observe_batch(batch_of(losses[part], norms[part], start)):
            found += [(start + index, finding.kind) for finding in findings]
        jumps += bank.take_jumps()
    return found, jumps


def alarms(losses: Floats, norms: Floats) -> list[tuple[int, str]]:
    """(step, kind) of everything that a fresh bank finds."""
    return judge(losses, norms)[0]


def mad(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def steady(steps: int) -> Floats:
    return np.ones((steps, LAYERS)) * np.array([0.1, 1.0, 3.0, 0.02])


# ------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("level", [0.0, 3.0])
@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_the_loss_alarms_at_most_once_in_ten_thousand_steps(noise: str, level: float) -> None:
    losses = level + NOISES[noise](np.random.default_rng(1), STEPS)
    found, jumps = judge(losses, steady(STEPS))
    assert len(found) <= 1
    assert len(jumps) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_a_falling_loss_and_of_eight_layers_is_suspicious_at_most_once(noise: str) -> None:
    random, steps = np.random.default_rng(7), np.arange(STEPS)
    fall = 0.3 + 5.0 * np.exp(-steps / 800.0) + 0.5 * np.exp(-steps / 4000.0)
    losses = fall * (1.0 + 0.05 * NOISES[noise](random, STEPS))
    logs = np.stack([NOISES[noise](random, STEPS) for _ in range(8)], axis=1)
    norms = np.geomspace(0.01, 3.0, 8) * np.exp((0.1 * logs).clip(-30.0, 30.0))
    assert len(judge(losses, norms)[1]) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_gradients_alarms_at_most_once_in_ten_thousand_steps(noise: str) -> None:
    random = np.random.default_rng(2)
    draws = np.stack([NOISES[noise](random, STEPS) for _ in range(LAYERS)], axis=1)
    found, jumps = judge(np.ones(STEPS), steady(STEPS) * (np.abs(1.0 + 0.3 * draws) + 1e-2))
    assert len(found) <= 1
    assert len(jumps) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_update_ratios_alarms_at_most_once_in_ten_thousand_samples(noise: str) -> None:
    random = np.random.default_rng(3)
    ratios = 1e-2 * np.exp(0.3 * np.stack([NOISES[noise](random, STEPS) for _ in range(4)], axis=1)).clip(
        0, 1e3
    )
    losses = np.exp(0.1 * NOISES["normal"](random, STEPS))
    samples = [
        plain(
            step,
            loss=float(losses[step]),
            grad_norm=np.ones(4),
            missing=np.zeros(4, dtype=np.bool_),
            update_ratio=ratios[step],
            parameter_norm=np.ones(4),
            scalars={"update_ratio": float(ratios[step].mean())},
        )
        for step in range(STEPS)
    ]
    assert len(find(samples, UpdateRatioDetector(OPTIONS))) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_memory_is_no_leak(noise: str) -> None:
    values = 4e9 + 2e7 * NOISES[noise](np.random.default_rng(4), STEPS)
    growths, judge = GrowthDetector(), LeakJudge()
    leaks = [
        step
        for step, value in enumerate(values)
        if judge.is_leak(growths.add(step, float(step), value), step=step, free_bytes=8e9)
    ]
    assert len(leaks) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_activations_alarms_at_most_once_in_two_thousand_samples(noise: str) -> None:
    random = np.random.default_rng(5)
    scatter = NOISES[noise](random, 2000) / 10.0
    samples = [
        plain(
            step,
            modules=module_sample(
                ("Linear", "ReLU", "Tanh"),
                ("0", "1", "2"),
                activation_max_abs=np.full(3, np.exp(scatter[step])),
                activation_mean=np.full(3, scatter[step]),
                activation_std=np.full(3, np.exp(scatter[step])),
                activation_zero_fraction=np.array([0.0, np.clip(0.5 + scatter[step], 0.0, 0.6), 0.0]),
                units=np.full(3, 64.0),
            ),
        )
        for step in range(2000)
    ]
    detectors = (DeadUnitDetector(OPTIONS), SaturationDetector(OPTIONS), DegenerateOutputDetector(OPTIONS))
    assert sum(len(find(samples, detector)) for detector in detectors) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_both_losses_is_neither_plateau_nor_overfitting(noise: str) -> None:
    random = np.random.default_rng(6)
    training, validation = (10.0 + NOISES[noise](random, STEPS // 4) for _ in range(2))
    samples = [
        plain(step, loss=float(a), scalars={"val_loss": float(b)} if step % 10 == 0 else {})
        for step, (a, b) in enumerate(zip(training, validation, strict=True))
    ]
    found = find(samples, PlateauDetector(OPTIONS)) + find(samples, OverfittingDetector(OPTIONS))
    assert not {finding.message for _, finding in found if finding.severity != "info"}


# ---------------------------------------------------------------------------------------- steps and units


def shaken(seed: int, at: int, *, loss: float = 1.0, gradient: float = 1.0) -> tuple[Floats, Floats]:
    """260 steps of noise; from one of them on the loss, or a layer's gradient, is so many times as large."""
    random = np.random.default_rng(seed)
    losses = np.exp(0.05 * random.standard_normal(260))
    norms = steady(260) * np.exp(0.2 * random.standard_normal((260, LAYERS)))
    losses[at:] *= loss
    norms[at:, 2] *= gradient
    return losses, norms


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), at=st.integers(128, 250), mads=st.floats(25.0, 1e4))
def test_step_of_the_loss_is_found_at_once(seed: int, at: int, mads: float) -> None:
    """MAD is 0.034; after 128 steps the limit is 12 MADs and half of the level."""
    found = alarms(*shaken(seed, at, loss=1.0 + 0.0337 * mads))
    assert found[0] == (at, "loss_spike")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), at=st.integers(40, 250), factor=st.floats(400.0, 1e9))
def test_step_of_a_gradient_is_found_at_once(seed: int, at: int, factor: float) -> None:
    assert (at, "gradient_explosion") in alarms(*shaken(seed, at, gradient=factor))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), at=st.integers(128, 250), what=st.sampled_from(["loss", "layer", "all"]))
def test_lasting_step_of_eight_mads_is_suspicious_within_five_steps(seed: int, at: int, what: str) -> None:
    """Far below the limits of an alarm: a loss 1.3 times as high, a gradient 3 times."""
    random = np.random.default_rng(seed)
    losses = np.exp(0.05 * random.standard_normal(at + 5))
    logs = 0.2 * random.standard_normal((at + 5, LAYERS))
    if what == "loss":
        losses[at:] += 8.0 * mad(losses[at - 128 : at])
    elif what == "layer":
        logs[at:, 2] += 8.0 * mad(logs[at - 128 : at, 2])
    else:
        logs[at:] += 8.0 * 0.2 * 0.6745
    found, jumps = judge(losses, steady(at + 5) * np.exp(logs))
    series = {"loss": {0}, "layer": {4}, "all": {1, 2, 3, 4, 5}}[what]
    assert series <= {jump.series for jump in jumps if at <= jump.found}
    assert not found


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    loss_unit=st.floats(-12.0, 12.0),
    gradient_unit=st.floats(-12.0, 12.0),
    faults=st.sampled_from([(1.0, 1.0), (30.0, 1.0), (1.0, 5000.0), (30.0, 5000.0), (1.0, 1e-5)]),
)
def test_units_of_loss_and_gradients_do_not_matter(
    seed: int, loss_unit: float, gradient_unit: float, faults: Sequence[float]
) -> None:
    losses, norms = shaken(seed, 180, loss=faults[0], gradient=faults[1])
    other = alarms(10.0**loss_unit * losses, 10.0**gradient_unit * norms)
    assert other == alarms(losses, norms)


def test_order_of_layers_and_number_of_batches_do_not_matter() -> None:
    losses, norms = shaken(11, 180, loss=30.0, gradient=5000.0)
    whole = DetectorBank(DetectorThresholds()).observe_batch(batch_of(losses, norms))
    turned = DetectorBank(DetectorThresholds()).observe_batch(batch_of(losses, norms[:, ::-1]))
    kinds = [(step, finding.kind) for step, findings in whole for finding in findings]
    assert kinds == alarms(losses, norms)
    assert kinds == [(step, finding.kind) for step, findings in turned for finding in findings]
