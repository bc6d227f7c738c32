"""Losses that go away for good: upwards, or below zero without end; and those that only look like it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from detector_series import _train, as_batch, observe_norms, on_one_thread
from torch import Tensor, nn
from torch.nn import functional as F

from probe.detectors import Observation
from probe.detectors.divergence import LossDivergenceDetector

NOISE = np.random.default_rng(7).standard_normal(2000)


def series(
    losses: Iterable[float], gradients: Iterable[float], weights: Iterable[float]
) -> list[Observation]:
    """One layer; the norm of its weights is known at every tenth step."""
    steps = enumerate(zip(losses, gradients, weights, strict=False))
    return [
        replace(
            observe_norms(step, [float(gradient)], loss=float(loss)),
            parameter_norm=np.array([float(weight)]) if step % 10 == 0 else None,
        )
        for step, (loss, gradient, weight) in steps
    ]


def found_at(observations: Iterable[Observation]) -> list[int]:
    detector = LossDivergenceDetector()
    return [observation.step for observation in observations if detector.observe(observation)]


def rising(*, scale: float = 1.0, shift: float = 0.0) -> list[Observation]:
    """Falls to a third in 200 steps, then rises by 2 % a step, with gradients and weights."""
    step = np.arange(400)
    away = np.maximum(np.exp(0.02 * (step - 200)) - 1.0, 0.0)
    losses = 1.0 + 2.0 * np.exp(-step / 40) + away + 0.02 * NOISE[:400]
    return series(scale * losses + shift, 0.1 + away, 3.0 + 0.5 * away)


def test_a_loss_that_rises_for_good_diverges_while_it_does() -> None:
    steps = found_at(rising())
    assert 255 <= steps[0] <= 320
    assert steps == list(range(steps[0], 400))


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 100.0), (1.0, -100.0)])
def test_rise_is_found_at_the_same_step_in_every_unit(scale: float, shift: float) -> None:
    assert found_at(rising(scale=scale, shift=shift)) == found_at(rising())


@pytest.mark.parametrize("start", [1.4, -1.4, 0.1])
def test_a_loss_that_falls_ever_faster_below_zero_diverges(start: float) -> None:
    step = np.arange(300)
    losses = start - 0.05 * (step / 10.0) ** 3 + 0.05 * NOISE[:300]
    found = found_at(series(losses, 0.5 + (step / 20.0) ** 2, 3.0 + step / 20.0))
    assert 90 <= found[0] <= 140
    assert found[-1] == 299


STEPS = np.arange(900)
RISEN = np.where(STEPS < 300, 1.0, 5.0)
HEALTHY = {
    "noise": (1.0 + NOISE[:900], np.ones(900), np.full(900, 3.0)),
    "a likelihood on its way below zero": (
        2.0 - 8.0 * (1.0 - np.exp(-STEPS / 200)) + 0.1 * NOISE[:900],
        0.5 + STEPS / 100,
        3.0 + STEPS / 200,
    ),
    "a critic that drifts": (np.cumsum(NOISE[:900]), np.exp(0.3 * NOISE[900:1800]), 3.0 + STEPS / 300),
    "a generator that loses": (np.minimum(0.7 + STEPS / 100, 5.0), 1.0 + STEPS / 200, 3.0 + STEPS / 2000),
    "an annealed term": (2.0 + 5.0 * np.minimum(STEPS / 500, 1.0), np.ones(900), 3.0 + STEPS / 300),
    "harder data": (
        RISEN * (1.0 + np.exp(-(STEPS % 300) / 80)) + 0.1 * NOISE[:900],
        RISEN,
        3.0 + STEPS / 300,
    ),
    "restarts": (1.0 + np.cos(STEPS % 300 / 100), np.exp(np.cos(STEPS % 300 / 100)), 3.0 + STEPS / 100),
    "a spike that decays": (
        1.0 + 50.0 * np.exp(-np.abs(STEPS - 400) / 15),
        1.0 + 50.0 * np.exp(-np.abs(STEPS - 400) / 15),
        np.full(900, 3.0),
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_losses_that_rise_or_fall_in_health_are_silent(name: str) -> None:
    assert found_at(series(*HEALTHY[name])) == []


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, outputs))


def train_on_minus_the_error(seed: int) -> list[Observation]:
    torch.manual_seed(seed)
    model = network(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(16, 6)
        return -F.cross_entropy(model(x), x[:, :4].argmax(1))

    return _train(model, optimizer, loss_of, 200)


def train_with_momentum_above_one(seed: int) -> list[Observation]:
    torch.manual_seed(seed)
    model = network(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=1.01)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(16, 6)
        return F.mse_loss(model(x), x.sum(1, keepdim=True))

    return _train(model, optimizer, loss_of, 400)


def train_a_density(seed: int) -> list[Observation]:
    """Mean and deviation of a narrow distribution: the negative likelihood falls from 0.3 to -3."""
    torch.manual_seed(seed)
    model = network(5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(32, 5)
        mean, log_deviation = model(x).chunk(2, 1)
        y = 0.5 * x[:, :1] + 0.02 * torch.randn(32, 1)
        return (log_deviation + 0.5 * ((y - mean) / log_deviation.exp()) ** 2).mean()

    return _train(model, optimizer, loss_of, 400)


def train_with_annealed_kl(seed: int) -> list[Observation]:
    torch.manual_seed(seed)
    encoder, decoder, basis = network(8, 8), network(4, 8), torch.randn(4, 8)
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(32, 4) @ basis
        mean, log_variance = encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return F.mse_loss(decoder(code), x, reduction="sum") / 32 + min(step / 200, 1) * 4 * divergence

    return _train(model, optimizer, loss_of, 400)


TRAININGS: dict[str, tuple[Callable[[int], list[Observation]], bool]] = {
    "a wrong sign": (train_on_minus_the_error, True),
    "momentum above one": (train_with_momentum_above_one, True),
    "a density": (train_a_density, False),
    "an annealed divergence": (train_with_annealed_kl, False),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_real_trainings(name: str) -> None:
    train, diverges = TRAININGS[name]
    assert bool(found_at(on_one_thread(train)(1))) is diverges


@pytest.mark.parametrize("name", ["rising", *list(HEALTHY)[:3]])
def test_batches_give_the_same_as_single_steps(name: str) -> None:
    observations = rising() if name == "rising" else series(*HEALTHY[name])
    detector, found = LossDivergenceDetector(), []
    for start in range(0, len(observations), 23):
        part = observations[start : start + 23]
        if not detector.learn_quiet(as_batch(part)):
            found += [observation.step for observation in part if detector.observe(observation)]
    assert found == found_at(observations)
