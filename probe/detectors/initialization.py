"""Poor initialization: signals that shrink or grow layer by layer, and units that all begin the same.

Judged on the first samples of a run, and never again.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import Finding
from .layers import in_words
from .sample import Floats, ModuleSample, ModuleSuccession, Sample, Succession
from .sampled_thresholds import SampledThresholds

FIRST_SAMPLES: Final = 20
FIRST_STEPS: Final = 100
MIN_LAYERS: Final = 4
MIN_CORRELATION: Final = 0.95
"""Of log size and depth: a bottleneck in the middle is a choice, a straight line is the initialization."""
TIMES: Final = 2
"""Samples in which it must be seen."""
CONSTANT_SHARE: Final = 0.5
"""Of the weight matrices; a single one is symmetric for good reasons, LoRA's B are zeros."""
ROUNDING: Final = 1e-6
"""Deviation of a matrix whose elements are all equal, relative to their size."""


class InitializationDetector:
    """Emits `poor_initialization`, a warning, while the run is young."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._ratio = thresholds.initial_ratio
        self._parameters, self._modules = Succession(), ModuleSuccession()
        self._first_step: int | None = None
        self._samples = self._seen = 0
        self._groups: list[npt.NDArray[np.intp]] = []

    def observe(self, sample: Sample) -> list[Finding]:
        """Return at most one finding."""
        if self._first_step is None:
            self._first_step = sample.step
        if sample.step > self._first_step + FIRST_STEPS:
            return []
        constant = None
        if self._parameters.begins_anew(sample) and sample.step == self._first_step:
            constant = _constant(sample)
        if constant is not None:
            return [constant]
        return self._signal(sample, sample.modules) if sample.modules is not None else []

    def _signal(self, sample: Sample, modules: ModuleSample) -> list[Finding]:
        if self._modules.begins_anew(modules, sample.step):
            self._samples = self._seen = 0
            self._groups = _rows_by_type(modules.types)
        rms = modules.columns.get("activation_rms")
        if rms is None or self._samples >= FIRST_SAMPLES:
            return []
        self._samples += 1
        worst = _steepest(self._groups, rms)
        if worst is None or abs(_span(rms, worst)) < math.log(self._ratio):
            self._seen = 0
            return []
        self._seen += 1
        return [self._finding(sample, modules, rms, worst)] if self._seen >= TIMES else []

    def _finding(
        self, sample: Sample, modules: ModuleSample, rms: Floats, rows: npt.NDArray[np.intp]
    ) -> Finding:
        first, last = int(rows[0]), int(rows[-1])
        ratio = math.exp(min(abs(_span(rms, rows)), 700.0))
        per_layer = ratio ** (1.0 / (len(rows) - 1))
        verb = "shrinks" if rms[last] < rms[first] else "grows"
        return Finding(
            kind="poor_initialization",
            severity="warning",
            subject=modules.names[last],
            message=f"The signal {verb} by a factor of {per_layer:.3g} from one {modules.types[first]} to "
            f"the next: from {rms[first]:.3g} in {in_words(modules.names[first])} to {rms[last]:.3g} in "
            f"{in_words(modules.names[last])} at step {sample.step}",
            value=ratio,
            threshold=self._ratio,
            neighbours=tuple((i, float(rms[row])) for i, row in enumerate(rows)),
            affected=tuple(modules.names[row] for row in rows),
        )


def _rows_by_type(types: tuple[str, ...]) -> list[npt.NDArray[np.intp]]:
    """Rows of each type of which there are enough, in the model's order."""
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(types):
        groups.setdefault(name, []).append(row)
    return [np.array(rows) for rows in groups.values() if len(rows) >= MIN_LAYERS]


def _steepest(groups: list[npt.NDArray[np.intp]], rms: Floats) -> npt.NDArray[np.intp] | None:
    """Rows of the type whose sizes go up or down the most, in a straight line over the depth."""
    with np.errstate(all="ignore"):
        logs = np.log(rms)
    best, widest = None, 0.0
    for group in groups:
        rows = group[np.isfinite(logs[group])]
        if len(rows) < MIN_LAYERS:
            continue
        span = abs(float(logs[rows[-1]] - logs[rows[0]]))
        if span > widest and abs(_correlation(logs[rows])) >= MIN_CORRELATION:
            best, widest = rows, span
    return best


def _correlation(values: Floats) -> float:
    """Of the values with their order; 0 where they are all the same."""
    place = np.arange(len(values)) - (len(values) - 1) / 2.0
    centred = values - values.mean()
    size = float(np.linalg.norm(place) * np.linalg.norm(centred))
    return float(place @ centred) / size if size > 0.0 else 0.0


def _span(rms: Floats, rows: npt.NDArray[np.intp]) -> float:
    """Log of last over first."""
    return math.log(rms[rows[-1]]) - math.log(rms[rows[0]])


def _constant(sample: Sample) -> Finding | None:
    """Weight matrices that hold one number throughout: their units stay copies of each other."""
    std, norm, is_matrix = sample.parameter_std, sample.parameter_norm, sample.is_matrix
    if std is None or norm is None or is_matrix is None:
        return None
    matrices = np.flatnonzero(is_matrix)
    # A matrix of n random elements has a deviation of norm / sqrt(n).
    constant = matrices[(norm[matrices] > 0.0) & (std[matrices] <= ROUNDING * norm[matrices])]
    if len(constant) < 2 or len(constant) < CONSTANT_SHARE * len(matrices):
        return None
    names = tuple(sample.parameter_names[row] for row in constant)
    return Finding(
        kind="poor_initialization",
        severity="warning",
        subject=names[0],
        message=f"All elements of {names[0]} and {len(names) - 1} more of {len(matrices)} weight matrices "
        f"are equal at step {sample.step}: the units of a layer begin as copies of each other and stay so",
        value=float(std[constant[0]]),
        threshold=None,
        affected=names,
    )
