"""What training showed of inputs and output, and what is far from it; batches are drawn by numpy."""

from __future__ import annotations

import numpy as np
import pytest

from probe.detectors.sample import InputSample, Sample
from probe.detectors.training_values import LEAST, TrainingValues, Values

RANDOM = np.random.default_rng(7)


def values(batch: np.ndarray) -> Values:
    return Values(float(batch.mean()), float(batch.std()), float(np.abs(batch).max()))


def sample(step: int, batch: np.ndarray) -> Sample:
    one = values(batch)
    bad = np.array([float(np.isnan(batch).sum())])
    inputs = InputSample(
        names=("x",),
        max_abs=np.array([one.max_abs]),
        mean=np.array([one.mean]),
        std=np.array([one.std]),
        nan_count=bad,
        inf_count=np.zeros(1),
    )
    return Sample(
        step=step,
        time=float(step),
        loss=None,
        total_grad_norm=None,
        grad_norm=None,
        missing=None,
        parameter_norm=None,
        update_ratio=None,
        inputs=inputs,
        parameter_names=(),
        layer_names=(),
        layer_of=np.zeros(0, np.intp),
    )


def trained(mean: float = 0.0, std: float = 1.0, *, steps: int = 20) -> TrainingValues:
    seen = TrainingValues()
    for step in range(steps):
        seen.note(sample(step, RANDOM.normal(mean, std, (16, 4))))
    return seen


@pytest.mark.parametrize("rows", [1, 2, 16, 256])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (5.0, 0.1), (-40.0, 30.0)])
def test_batches_of_the_same_kind_are_no_drift_whatever_their_size(
    rows: int, mean: float, std: float
) -> None:
    seen = trained(mean, std)
    found = [seen.drift("x", values(RANDOM.normal(mean, std, (rows, 4))), rows) for _ in range(500)]
    assert [one for one in found if one] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda batch: batch * 255.0, "largest magnitude"),
        (lambda batch: batch * 8.0, "standard deviation"),
        (lambda batch: batch + 3.0, "its mean is"),
        (lambda batch: batch / 255.0, "standard deviation"),
    ],
)
def test_a_scale_or_an_offset_that_is_left_out_is_drift(change: object, words: str) -> None:
    assert callable(change)
    found = trained().drift("x", values(change(RANDOM.normal(0, 1, (16, 4)))), 16)
    assert found is not None and words in found.text
    assert found.value > found.threshold or "at least" in found.text


def test_nothing_is_said_of_few_samples_and_of_other_names() -> None:
    assert trained(steps=LEAST - 1).drift("x", values(RANDOM.normal(99, 1, (16, 4))), 16) is None
    assert trained(steps=LEAST).drift("x", values(RANDOM.normal(99, 1, (16, 4))), 16) is not None
    assert trained().drift("y", values(RANDOM.normal(99, 1, (16, 4))), 16) is None


def test_batches_with_nan_are_no_reference() -> None:
    seen = TrainingValues()
    for step in range(20):
        seen.note(sample(step, np.full((4, 4), np.nan)))
    assert seen.drift("x", Values(0.0, 1.0, 2.0), 8) is None
