"""A validation loss that turns NaN, and series in which NaN is meant."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pytest

from probe.detectors.sample import Sample
from probe.detectors.validation import ValidationDetector


def found(name: str, values: Sequence[float | None]) -> list[int]:
    """Steps with a finding; None is a step without the series."""
    detector = ValidationDetector()
    steps = []
    for step, value in enumerate(values):
        sample = Sample(
            step=step,
            time=float(step),
            loss=1.0,
            total_grad_norm=None,
            grad_norm=None,
            missing=None,
            parameter_norm=None,
            update_ratio=None,
            scalars={} if value is None else {name: value},
            parameter_names=("w",),
            layer_names=("",),
            layer_of=np.zeros(1, dtype=np.intp),
        )
        for finding in detector.observe(sample):
            assert (finding.kind, finding.severity) == ("nonfinite_loss", "warning")
            assert finding.subject == name.removeprefix("log/")
            steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("name", "values", "steps"),
    [
        ("val_loss", [nan], [0]),
        ("val_loss", [1.0, None, nan, None, inf, 1.0, nan], [2, 6]),
        ("log/val_loss", [1.0, None, 0.9, None, nan, nan], [4]),
        ("log/eval_loss", [1.0, 0.9, inf], [2]),
    ],
)
def test_loss_that_is_not_finite_is_found(
    name: str, values: Sequence[float | None], steps: Sequence[int]
) -> None:
    assert found(name, values) == steps


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("log/val_loss", [nan, nan, 1.0, nan, 0.9, nan, 0.8]),
        ("log/val_loss", [1.0, nan, nan, 0.9, 0.8, 0.7, nan]),
        ("log/val_accuracy", [1.0, 0.9, nan]),
        ("val_loss", [1.0, None, 1e30]),
    ],
    ids=["nan before the first", "nan between evaluations", "no loss", "large"],
)
def test_nan_that_stands_for_nothing_is_silent(name: str, values: Sequence[float | None]) -> None:
    assert found(name, values) == []
