"""What training has shown of the model's inputs and outputs, and what is far from it: drift at inference.

Filled with the samples that the detectors see, read when a model is called outside of its training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from .sample import InputSample, ModuleSample, Sample

OUTPUT: Final = "output"
"""Name of what the model returns."""
KEPT: Final = 64
"""Newest samples of each name: outputs change while a model learns."""
LEAST: Final = 5
"""With fewer of them nothing is said."""
SHIFT: Final = 2.0
"""A mean is far away that is so many standard deviations of the elements off ..."""
ROW_SHIFT: Final = 6.0
"""... and so many divided by the root of the rows, whose elements may be alike ..."""
SPREAD: Final = 3.0
"""... and so many times as far as the mean of any batch of the training."""
WIDER: Final = 5.0
"""Times the largest standard deviation of a batch ..."""
NARROWER: Final = 0.1
"""... and of the smallest one, unless it is 0: one row may hold equal numbers."""
LARGER: Final = 10.0
"""Times the largest magnitude."""


class Values(NamedTuple):
    """One tensor, as numbers."""

    mean: float
    std: float
    """Population standard deviation of the elements."""
    max_abs: float


class Drift(NamedTuple):
    """What is far from what training showed."""

    text: str
    """What, in words, with both numbers."""
    value: float
    threshold: float


class TrainingValues:
    """The newest samples of each input and of the output; written under the detectors' lock."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[Values]] = {}

    def note(self, sample: Sample) -> None:
        """Take what was measured of one step."""
        if sample.inputs is not None:
            for index, name in enumerate(sample.inputs.names):
                self._keep(name, values_of_input(sample.inputs, index))
        if sample.modules is not None:
            self._keep(OUTPUT, _values_of_output(sample.modules))

    def _keep(self, name: str, values: Values | None) -> None:
        if values is not None:
            self._seen.setdefault(name, deque(maxlen=KEPT)).append(values)

    def drift(self, name: str, values: Values, rows: int) -> Drift | None:
        """Compare a tensor with those of the training; None where it is like them, or too few were seen.

        Args:
            name: of the argument, or `OUTPUT`.
            values: of the tensor.
            rows: its first dimension; 1 where it has none.
        """
        seen = tuple(self._seen.get(name, ()))
        return None if len(seen) < LEAST else _compare(seen, values, rows)


def values_of_input(inputs: InputSample, index: int) -> Values | None:
    """Return what was measured of one input; None where it has no finite numbers."""
    if inputs.nan_count[index] or inputs.inf_count[index]:
        return None
    return _finite(inputs.mean[index], inputs.std[index], inputs.max_abs[index])


def _values_of_output(modules: ModuleSample) -> Values | None:
    columns = [modules.columns.get(f"activation_{name}") for name in ("mean", "std", "max_abs")]
    if "" not in modules.names or any(column is None for column in columns):
        return None
    row = modules.names.index("")
    return _finite(*(float(column[row]) for column in columns if column is not None))


def _finite(mean: float, std: float, max_abs: float) -> Values | None:
    values = Values(float(mean), float(std), float(max_abs))
    return values if all(map(math.isfinite, values)) else None


def _compare(seen: Sequence[Values], values: Values, rows: int) -> Drift | None:
    means, stds, sizes = np.array(seen).T
    mean = float(means.mean())
    std = math.sqrt(float(np.square(stds).mean() + means.var()))
    if std == 0.0:
        return None
    if values.max_abs > LARGER * sizes.max():
        return _drift("its largest magnitude", values.max_abs, "up to", sizes.max(), LARGER * sizes.max())
    if values.std > WIDER * stds.max():
        return _drift("its standard deviation", values.std, "up to", stds.max(), WIDER * stds.max())
    shift = max(SHIFT, ROW_SHIFT / math.sqrt(max(rows, 1)))
    limit = max(shift * std, SPREAD * float(np.abs(means - mean).max()))
    if abs(values.mean - mean) > limit:
        return Drift(
            f"its mean is {values.mean:.4g}, in training {mean:.4g} with a standard deviation of {std:.3g}",
            abs(values.mean - mean),
            limit,
        )
    if 0.0 < values.std < NARROWER * stds.min():
        return _drift("its standard deviation", values.std, "at least", stds.min(), NARROWER * stds.min())
    return None


def _drift(what: str, value: float, bound: str, usual: float, threshold: float) -> Drift:
    return Drift(f"{what} is {value:.4g}, in training {bound} {usual:.4g}", value, float(threshold))
