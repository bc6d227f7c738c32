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
from probe.detectors.early_divergence import EarlyDivergenceDetector

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


# ----------------------------------------------------------------------------------- in the first steps


def early(
    losses: Iterable[float],
    *,
    gradients: Iterable[float] | None = None,
    weights: Iterable[float] | None = None,
) -> list[int]:
    """Steps at which a loss is said to have diverged early; gradients and weights grow with it by default."""
    values = np.array(list(losses), dtype=float)
    gradients = np.sqrt(np.abs(values)) if gradients is None else gradients
    weights = 1.0 + np.log10(np.maximum(np.abs(values), 1.0)) if weights is None else weights
    detector = EarlyDivergenceDetector()
    return [observed.step for observed in series(values, gradients, weights) if detector.observe(observed)]


RUNAWAYS = {
    "explodes": [10.0**step for step in range(40)],
    "stays up": [2.0, 3.0] + [900.0] * 38,
    "saturates": [2.3, 5.0, 40.0, 300.0] + [1500.0 + step for step in range(36)],
    "late": [1.0] * 9 + [300.0] * 31,
}


@pytest.mark.parametrize("name", RUNAWAYS)
def test_loss_that_rises_a_hundredfold_at_first_and_stays_is_found_within_twenty_steps(name: str) -> None:
    losses = RUNAWAYS[name]
    risen = next(step for step, loss in enumerate(losses) if loss > 100.0 * losses[0])
    steps = early(losses)
    assert steps and risen + 4 <= steps[0] <= risen + 20
    assert steps == list(range(steps[0], 40))


def test_gradients_that_vanish_after_the_rise_do_not_hide_it() -> None:
    losses = RUNAWAYS["stays up"]
    assert early(losses, gradients=[1.0, 1.0, 1e4] + [0.0] * 37)


CALM = {
    "comes back": ([2.0, 500.0, 300.0, 100.0, 15.0] + [2.0] * 35, None, None),
    "first reward": ([1e-5] * 4 + [1.0] * 36, None, [1.0] * 40),
    "first loss is nothing": ([0.0] + [5.0] * 39, None, None),
    "below zero": ([-1.0] + [500.0] * 39, None, None),
    "later": ([1.0] * 12 + [300.0] * 28, None, None),
    "gradients as before": ([1.0, 200.0] + [300.0] * 38, [1.0] * 40, None),
}


@pytest.mark.parametrize("name", CALM)
def test_first_losses_of_healthy_runs_are_no_divergence(name: str) -> None:
    losses, gradients, weights = CALM[name]
    assert early(losses, gradients=gradients, weights=weights) == []


def test_early_divergence_ends_when_the_loss_is_back_and_with_a_new_run() -> None:
    losses = [1.0] + [500.0] * 19 + [2.0] * 20
    assert early(losses)[-1] == 19
    detector = EarlyDivergenceDetector()
    run = series([1.0] + [500.0] * 15, [1.0] + [50.0] * 15, [1.0] + [5.0] * 15)
    assert [bool(detector.observe(each)) for each in run][-1]
    assert not detector.observe(run[0])


@pytest.mark.parametrize(("lr", "found"), [(300.0, [10]), (0.1, [])])
def test_real_updates_by_hand_that_are_too_large_are_found(lr: float, found: list[int]) -> None:
    def train(seed: int) -> list[Observation]:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        x, target = torch.randn(64, 8), torch.randint(0, 4, (64,))
        columns = []
        for _ in range(11):
            net.zero_grad()
            loss = F.cross_entropy(net(x), target)
            loss.backward()
            pairs = [(p.detach(), p.grad) for p in net.parameters() if p.grad is not None]
            norms = [float(torch.stack([pair[at].norm() for pair in pairs]).norm()) for at in (1, 0)]
            columns.append((loss.item(), *norms))
            with torch.no_grad():
                for value, grad in pairs:
                    value -= lr * grad
        return series(*zip(*columns, strict=True))

    detector = EarlyDivergenceDetector()
    assert [each.step for each in on_one_thread(train)(0) if detector.observe(each)] == found
