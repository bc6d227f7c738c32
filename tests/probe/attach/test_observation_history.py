"""Gradient noise scale and cosine against problems whose answer is known."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.attach.observation.gradient_history import GradientHistory
from probe.attach.observation.gradient_meters import FinishedGradients, GradientMeters
from probe.attach.observation.gradient_noise import NO_SECOND_SIZE, NO_SIGNAL, TOO_FEW, GradientNoise

SIGNAL = np.full(400, 0.5)
SPREAD = 3.0
TRUE_SCALE = 400 * SPREAD**2 / float(SIGNAL @ SIGNAL)


def sample_gradients(rng: np.random.Generator, samples: int) -> np.ndarray:
    """(samples, 400) gradients of single samples, with independent noise."""
    return SIGNAL + SPREAD * rng.standard_normal((samples, 400))


@pytest.mark.parametrize("divisor", [1, 4])
def test_noise_scale_from_accumulation_is_the_true_one(divisor: int) -> None:
    rng, noise = np.random.default_rng(0), GradientNoise()
    for _ in range(400):
        # Each micro-step's gradient is of the mean loss of 8 samples, divided by what the script divides by.
        micro = sample_gradients(rng, 32).reshape(4, 8, 400).mean(axis=1) / divisor
        noise.note_accumulation(
            first_norm=float(np.linalg.norm(micro[0])),
            total_norm=float(np.linalg.norm(micro.sum(axis=0))),
            micro_steps=4,
            divisor=divisor,
            samples=32,
        )
    assert noise.reason is None
    assert noise.scale == pytest.approx(TRUE_SCALE, rel=0.25)


def test_noise_scale_from_ranks_is_the_true_one() -> None:
    rng, noise = np.random.default_rng(1), GradientNoise()
    for _ in range(400):
        ranks = sample_gradients(rng, 64).reshape(2, 32, 400).mean(axis=1)
        local, reduced = np.linalg.norm(ranks[0]), np.linalg.norm(ranks.mean(axis=0))
        noise.note(small_norm=float(local), small_batch=32, big_norm=float(reduced), big_batch=64)
    assert noise.scale == pytest.approx(TRUE_SCALE, rel=0.25)


def test_noise_scale_from_successive_steps_is_the_true_one() -> None:
    rng, noise = np.random.default_rng(2), GradientNoise()
    old = sample_gradients(rng, 32).mean(axis=0)
    for _ in range(400):
        new = sample_gradients(rng, 32).mean(axis=0)
        norms = {"norm": float(np.linalg.norm(new)), "previous_norm": float(np.linalg.norm(old))}
        noise.note_successive(**norms, dot=float(new @ old), batch=32)
        old = new
    assert noise.scale == pytest.approx(TRUE_SCALE, rel=0.25)


def test_noise_scale_says_why_there_is_none() -> None:
    noise = GradientNoise()
    assert (noise.scale, noise.reason) == (None, NO_SECOND_SIZE)
    noise.note_accumulation(first_norm=1, total_norm=1, micro_steps=1, divisor=1, samples=8)
    noise.note(small_norm=float("nan"), small_batch=1, big_norm=1, big_batch=2)
    assert noise.reason == NO_SECOND_SIZE
    noise.note(small_norm=2, small_batch=1, big_norm=1, big_batch=2)
    assert (noise.scale, noise.reason) == (None, TOO_FEW)
    for _ in range(5):
        # |small|^2 = 4 |big|^2 at half the batch: less signal than nothing.
        noise.note(small_norm=2, small_batch=1, big_norm=1, big_batch=2)
    assert (noise.scale, noise.reason) == (None, NO_SIGNAL)


def gradients_of(seed: int) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(30, 20), (7,), (), (5, 5)]
    tensors: list[Tensor | None] = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors[3] = None if seed == 1 else tensors[3]
    return tensors


def test_cosine_matches_a_slow_reference() -> None:
    history = GradientHistory()
    assert history.compare(gradients_of(0)) is None
    turn = history.compare(gradients_of(1))
    assert turn is not None and turn.cosine is not None
    old, new = (
        torch.cat([t.double().reshape(-1) for t in gradients_of(s)[:3] if t is not None]) for s in (0, 1)
    )
    assert turn.cosine == pytest.approx(float(torch.cosine_similarity(new, old, dim=0)), abs=1e-6)
    assert turn.dot == pytest.approx(float(new @ old), rel=1e-5)
    assert turn.by_parameter.missing.tolist() == [False, False, False, True]
    first = torch.cosine_similarity(*(gradients_of(s)[0].double().reshape(-1) for s in (1, 0)), dim=0)  # type: ignore[union-attr]
    assert turn.by_parameter.values[0] == pytest.approx(float(first), abs=1e-6)
    assert turn.kept_fraction == 1.0


def test_cosine_uses_a_copy_that_later_updates_do_not_touch() -> None:
    history, gradient = GradientHistory(), torch.ones(50)
    history.compare([gradient])
    for _ in range(3):
        gradient.neg_()
        turn = history.compare([gradient])
        assert turn is not None and turn.cosine == pytest.approx(-1.0)


def test_cosine_of_a_large_model_is_estimated_within_the_memory_limit() -> None:
    limit = 200_000
    history = GradientHistory(limit)
    generator = torch.Generator().manual_seed(0)
    old = [torch.randn(400_000, generator=generator), torch.randn(10, generator=generator)]
    new = [0.6 * old[0] + 0.8 * torch.randn(400_000, generator=generator), old[1]]
    history.compare(old)
    turn = history.compare(new)
    assert history.memory_bytes <= limit + 100
    assert turn is not None and turn.cosine == pytest.approx(0.6, abs=0.05)
    assert turn.norm == pytest.approx(float(torch.cat(new).norm()), rel=0.05)
    assert turn.kept_fraction < 0.1


def test_sampling_draws_nothing_from_the_scripts_generators() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    history = GradientHistory(1000)
    history.compare([torch.ones(10_000)])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_changed_shapes_and_numbers_of_parameters_begin_anew() -> None:
    history = GradientHistory()
    history.compare([torch.ones(4), torch.ones(3)])
    turn = history.compare([torch.ones(5), torch.ones(3)])
    assert turn is not None and turn.by_parameter.missing.tolist() == [True, False]
    assert history.compare([torch.ones(5)]) is None
    history.release()
    assert history.memory_bytes == 0


def test_zero_sparse_and_nan_gradients_give_no_or_nan_cosine() -> None:
    history = GradientHistory()
    sparse = torch.eye(2).to_sparse()
    history.compare([torch.zeros(2), sparse, torch.ones(2)])
    turn = history.compare([torch.zeros(2), sparse, torch.tensor([1.0, float("nan")])])
    assert turn is not None
    assert turn.by_parameter.missing.tolist() == [True, True, False]
    assert np.isnan(turn.by_parameter.values[2])


def read(meters: GradientMeters, step: int, gradient: Tensor, **options: object) -> dict[str, float]:
    finished = FinishedGradients(
        step=step, gradients=[gradient], total_norm=float(gradient.norm()), samples=32, **options
    )
    return meters.read(finished, has_noise=True, has_cosine=True).scalars


def test_meters_take_the_noise_from_successive_steps_when_nothing_else_tells() -> None:
    rng, meters, found = np.random.default_rng(3), GradientMeters(), {}
    for step in range(400):
        found = read(meters, step, torch.from_numpy(sample_gradients(rng, 32).mean(axis=0)))
    assert found["gradient_noise_scale"] == pytest.approx(TRUE_SCALE, rel=0.25)
    assert -1 <= found["gradient_cosine"] <= 1


def test_meters_do_not_take_distant_steps_for_successive_ones() -> None:
    meters = GradientMeters()
    for step in range(0, 100, 5):
        found = read(meters, step, torch.randn(10))
    assert set(found) == {"gradient_cosine"}
    assert meters.noise.reason == NO_SECOND_SIZE


def test_meters_take_the_noise_from_an_accumulation() -> None:
    rng, meters, found = np.random.default_rng(4), GradientMeters(), {}
    for step in range(400):
        micro = sample_gradients(rng, 32).reshape(4, 8, 400).mean(axis=1) / 4
        total, first = torch.from_numpy(micro.sum(axis=0)), float(np.linalg.norm(micro[0]))
        found = read(meters, step, total, first_norm=first, micro_steps=4, divisor=4.0)
    assert found["gradient_noise_scale"] == pytest.approx(TRUE_SCALE, rel=0.25)


def test_first_comparison_of_many_gradients_looks_at_each_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []

    def spy(values: Any) -> Any:
        listed = list(values)
        looked.append(len(listed))
        return sum(listed)

    monkeypatch.setattr("probe.attach.observation.gradient_history.sum", spy, raising=False)
    history = GradientHistory(limit_bytes=1_000)
    gradients = [torch.full((30,), float(index + 1)) for index in range(100)]
    history.compare(gradients)
    turn = history.compare(gradients)
    assert turn is not None and turn.cosine == pytest.approx(1.0)
    assert looked[0] > 0 and np.sum(looked) <= 10 * len(gradients)


def test_gradients_that_carry_a_graph_are_compared_and_kept_without_it() -> None:
    history, weight = GradientHistory(), torch.ones(4, requires_grad=True)
    for factor in (1.0, -2.0):
        (gradient,) = torch.autograd.grad((factor * weight**2).sum(), weight, create_graph=True)
        turn = history.compare([gradient])
    assert turn is not None and turn.cosine == pytest.approx(-1.0)
    assert [kept is not None and kept.requires_grad for kept in history._kept.tensors] == [False]
