"""Poor initialization: signals or gradients that shrink or grow layer by layer, units that begin the same.

Judged on the first samples of a run, and never again.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import Finding
from .cause_advice import COPIES
from .layers import in_words
from .sample import Floats, ModuleSample, ModuleSuccession, Sample, Succession
from .sampled_thresholds import SampledThresholds

_MOST_NEIGHBOURS: Final = 128
FIRST_SAMPLES: Final = 20
FIRST_STEPS: Final = 100
MIN_LAYERS: Final = 4
MIN_CORRELATION: Final = 0.95
"""Of log size and depth: a bottleneck in the middle is a choice, a straight line is the initialization."""
TIMES: Final = 2
"""Samples in which it must be seen, but only one, of the weights as they were made, where it is so steep
that no batch is to blame; an update makes the last layers' signals larger, and the line crooked ..."""
CERTAIN_POWER: Final = 2.0
"""Of the ratio from first to last: so steep."""
GRADIENT_TIMES: Final = 4
"""... in a row; of gradients more of them, for these change with every batch."""
MIN_MATRICES: Final = 6
"""Weight matrices with a gradient, of which the gradients are judged: with fewer a line means little."""
CONSTANT_SHARE: Final = 0.5
"""Of the weight matrices; a single one is symmetric for good reasons, LoRA's B are zeros."""
TINY_GAIN: Final = 1e-2
"""A matrix of n x n random elements makes a signal std * sqrt(n) times as large: 0.3 to 1.4 is usual."""
NONLINEAR_TYPES: Final = frozenset(
    {
        "ReLU",
        "LeakyReLU",
        "PReLU",
        "ELU",
        "SELU",
        "GELU",
        "SiLU",
        "Mish",
        "Softplus",
        "Tanh",
        "Sigmoid",
        "ReLU6",
    }
)
"""A deep linear net may well begin near 0 on purpose: that is how its saddles are studied."""
AFTER_UPDATES: Final = (
    "The first updates have made it so, not the initialisation: the gradient had an ordinary size before "
    "them.",
    "Lower the learning rate, warm it up, or clip gradients; look at the update ratios (about 1e-3 is usual)."
    "",
    "If units saturated or died with these updates, begin again from the initial weights.",
)
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
        self._is_matrix: npt.NDArray[np.bool_] | None = None
        self._steep = 0
        self._first_norms: Floats | None = None
        """Gradients as the weights were made, before any update."""

    def observe(self, sample: Sample) -> list[Finding]:
        """Return at most one finding."""
        if self._first_step is None:
            self._first_step = sample.step
        if sample.step > self._first_step + FIRST_STEPS:
            return []
        if sample.step == self._first_step:
            self._first_norms = sample.grad_norm
        if self._parameters.begins_anew(sample):
            self._is_matrix, self._steep = sample.is_matrix, 0
            if sample.step == self._first_step:
                finding = _constant(sample) or _zero(sample) or _tiny(sample)
                if finding is not None:
                    return [finding]
        elif self._is_matrix is None:
            self._is_matrix = sample.is_matrix
        signal = self._signal(sample, sample.modules) if sample.modules is not None else []
        return signal or self._gradient(sample)

    def _gradient(self, sample: Sample) -> list[Finding]:
        """Gradients of the weight matrices that fall or rise in a straight line over the depth."""
        norms = sample.grad_norm
        if norms is None or self._is_matrix is None or len(self._is_matrix) != len(norms):
            return []
        rows = np.flatnonzero(self._is_matrix & (norms > 0.0) & np.isfinite(norms))
        if len(rows) < MIN_MATRICES:
            return []
        logs = np.log(norms[rows])
        is_steep = abs(logs[-1] - logs[0]) >= math.log(self._ratio)
        self._steep = self._steep + 1 if is_steep and abs(_correlation(logs)) >= MIN_CORRELATION else 0
        if self._steep < GRADIENT_TIMES:
            return []
        first, last = int(rows[0]), int(rows[-1])
        per_matrix = math.exp(abs(logs[-1] - logs[0]) / (len(rows) - 1))
        verb = "shrinks" if norms[first] < norms[last] else "grows"
        names = sample.parameter_names
        began, advice = self._beginning(norms, first)
        return [
            Finding(
                kind="poor_initialization",
                severity="warning",
                subject=names[first],
                advice=advice,
                message=f"On its way back the gradient {verb} by a factor of {per_matrix:.3g} from one "
                f"weight matrix to the one before: from {norms[last]:.3g} in `{names[last]}` to "
                f"{norms[first]:.3g} in `{names[first]}` at step {sample.step}{began}",
                value=float(np.exp(abs(logs[-1] - logs[0]))),
                threshold=self._ratio,
                neighbours=_by_depth(norms, rows),
                affected=tuple(names[row] for row in rows),
            )
        ]

    def _beginning(self, norms: Floats, row: int) -> tuple[str, tuple[str, ...]]:
        """What to say and to advise where a gradient was of ordinary size before the first updates."""
        first = self._first_norms
        if first is None or len(first) != len(norms) or not first[row] > 0.0:
            return "", ()
        if abs(math.log(first[row]) - math.log(norms[row])) < math.log(self._ratio) / 2.0:
            return "", ()
        return f"; at step {self._first_step} it was {first[row]:.2g} there", AFTER_UPDATES

    def _signal(self, sample: Sample, modules: ModuleSample) -> list[Finding]:
        if self._modules.begins_anew(modules, sample.step):
            self._samples = self._seen = 0
            self._groups = _rows_by_type(modules.types)
        rms = modules.columns.get("activation_rms")
        if rms is None or self._samples >= FIRST_SAMPLES:
            return []
        self._samples += 1
        worst = _steepest(self._groups, rms)
        span = 0.0 if worst is None else abs(_span(rms, worst))
        if worst is None or span < math.log(self._ratio):
            self._seen = 0
            return []
        self._seen += 1
        is_certain = sample.step == self._first_step and span >= CERTAIN_POWER * math.log(self._ratio)
        return [self._finding(sample, modules, rms, worst)] if is_certain or self._seen >= TIMES else []

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
            neighbours=_by_depth(rms, rows),
            affected=tuple(modules.names[row] for row in rows),
        )


def _by_depth(values: Floats, rows: npt.NDArray[np.intp]) -> tuple[tuple[int, float], ...]:
    """Position and value of these rows, evenly thinned where an event has no room for all."""
    # Not np.unique, which loads numpy.ma at its first call.
    gaps = max(min(len(rows), _MOST_NEIGHBOURS) - 1, 1)
    chosen = sorted({at * (len(rows) - 1) // gaps for at in range(gaps + 1)})
    return tuple((at, float(values[rows[at]])) for at in chosen)


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


def _zero(sample: Sample) -> Finding | None:
    """Weight matrices of nothing but zeros that get no gradient either: they stand behind one another.

    A single zero-initialised matrix (LoRA's B, the last one of a residual branch, a head) gets a gradient.
    """
    norm, grad, is_matrix = sample.parameter_norm, sample.grad_norm, sample.is_matrix
    if norm is None or grad is None or is_matrix is None or sample.missing is None:
        return None
    matrices = np.flatnonzero(is_matrix)
    stuck = matrices[(norm[matrices] == 0.0) & (grad[matrices] == 0.0) & ~sample.missing[matrices]]
    if len(stuck) < 2 or len(stuck) < CONSTANT_SHARE * len(matrices) or not (grad > 0.0).any():
        return None
    names = tuple(sample.parameter_names[row] for row in stuck)
    return Finding(
        kind="poor_initialization",
        severity="warning",
        subject=names[0],
        message=f"`{names[0]}` and {len(names) - 1} more of {len(matrices)} weight matrices are 0 throughout "
        f"at step {sample.step}, and so are their gradients: zeros behind zeros do not learn",
        value=0.0,
        threshold=None,
        affected=names,
        advice=COPIES,
    )


def _tiny(sample: Sample) -> Finding | None:
    """Weight matrices that let next to nothing through: outputs do not depend on the input, nothing learns.

    The size n of a matrix of n x n elements is (norm / std) ** 2 = n ** 2, where their mean is about 0.
    """
    std, norm, is_matrix, modules = (
        sample.parameter_std,
        sample.parameter_norm,
        sample.is_matrix,
        sample.modules,
    )
    if std is None or norm is None or is_matrix is None or modules is None:
        return None
    matrices = np.flatnonzero(is_matrix)
    gain = np.sqrt(norm[matrices] * std[matrices])
    tiny = matrices[(gain > 0.0) & (gain < TINY_GAIN)]
    if (
        len(tiny) < 2
        or len(tiny) < CONSTANT_SHARE * len(matrices)
        or NONLINEAR_TYPES.isdisjoint(modules.types)
    ):
        return None
    names = tuple(sample.parameter_names[row] for row in tiny)
    return Finding(
        kind="poor_initialization",
        severity="warning",
        subject=names[0],
        message=f"The elements of `{names[0]}` and {len(names) - 1} more of {len(matrices)} weight matrices "
        f"are so small (standard deviation {std[tiny[0]]:.2g}) that each makes its input about "
        f"{1.0 / gain[gain > 0.0].min():.2g} times smaller at step {sample.step}",
        value=float(gain[gain > 0.0].min()),
        threshold=TINY_GAIN,
        affected=names,
    )


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
        message=f"All elements of `{names[0]}` and {len(names) - 1} more of {len(matrices)} weight matrices "
        f"are equal at step {sample.step}: the units of a layer begin as copies of each other and stay so",
        value=float(std[constant[0]]),
        threshold=None,
        affected=names,
        advice=COPIES,
    )
