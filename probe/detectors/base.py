"""What a detector is given and what it returns. Numbers in, findings out: numpy only, no I/O, no torch.

One file per family of failures stands beside this one; `episodes.py` turns the findings of successive
steps into events. Detectors run on the training thread, so an `observe` is a few vectorised operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ..wire import Severity

Floats = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.float32] | Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One step as numbers. Arrays are (parameters,) float64 in layout order; None was not measured."""

    step: int
    loss: float | None
    total_grad_norm: float | None
    """Global L2 norm; None when no parameter had a gradient."""
    grad_norm: Floats | None
    grad_max_abs: Floats | None
    grad_nan_count: Floats | None
    grad_inf_count: Floats | None
    missing: npt.NDArray[np.bool_] | None
    """True where the parameter has no gradient at this step; its other values are to be ignored."""
    parameter_norm: Floats | None
    """Only at the steps at which it is due."""
    parameter_names: tuple[str, ...]
    layer_names: tuple[str, ...]
    layer_of: npt.NDArray[np.intp]
    """(parameters,) index into `layer_names`; grouped: layers are contiguous and ascending."""
    lowest_rate: float | None = None
    """Learning rate of the parameter group that has the lowest; None when unknown."""
    highest_rate: float | None = None
    input_elements: int = 0
    """Of the first input, summed over the micro-steps; 0 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationBatch:
    """Successive steps of one layout, all values of them finite, or bad in one and the same way."""

    steps: Sequence[int]
    losses: Sequence[float | None]
    total_grad_norms: Sequence[float | None]
    """Global L2 norm of each step; None when no parameter had a gradient."""
    grad_norm: AnyFloats
    """(steps, parameters); of single precision where C has measured them all."""
    grad_max_abs: AnyFloats
    """(steps, parameters); the same."""
    missing: npt.NDArray[np.bool_] | None
    """(steps, parameters), as in `Observation`; None: every parameter has a gradient at every step."""
    parameter_norms: Sequence[Floats | None]
    """One entry per step, (parameters,) or None where not measured."""
    parameter_names: tuple[str, ...]
    layer_names: tuple[str, ...]
    layer_of: npt.NDArray[np.intp]
    lowest_rates: Sequence[float | None] = ()
    """One entry per step; empty when unknown."""
    highest_rates: Sequence[float | None] = ()
    input_elements: Sequence[int] = ()
    """One entry per step, as in `Observation`; empty when unknown."""
    kept: dict[str, Floats] = field(default_factory=dict, repr=False, compare=False)
    """What several detectors compute of it, by name; read-only arrays (`LayerIndex.norms_of`)."""

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, start: int, stop: int) -> ObservationBatch:
        """Return the steps `[start, stop)`."""
        chosen = slice(start, stop)
        return replace(
            self,
            steps=self.steps[chosen],
            losses=self.losses[chosen],
            total_grad_norms=self.total_grad_norms[chosen],
            grad_norm=self.grad_norm[chosen],
            grad_max_abs=self.grad_max_abs[chosen],
            missing=None if self.missing is None else self.missing[chosen],
            parameter_norms=self.parameter_norms[chosen],
            lowest_rates=self.lowest_rates[chosen],
            highest_rates=self.highest_rates[chosen],
            input_elements=self.input_elements[chosen],
            kept={},
        )

    def at(self, index: int) -> Observation:
        """Return one step by its index in the batch; its counts of NaN and Inf are not known, so None."""
        return Observation(
            step=self.steps[index],
            loss=self.losses[index],
            total_grad_norm=self.total_grad_norms[index],
            grad_norm=self.grad_norm[index].astype(np.float64),
            grad_max_abs=self.grad_max_abs[index].astype(np.float64),
            grad_nan_count=None,
            grad_inf_count=None,
            missing=None if self.missing is None else self.missing[index],
            parameter_norm=self.parameter_norms[index],
            parameter_names=self.parameter_names,
            layer_names=self.layer_names,
            layer_of=self.layer_of,
            lowest_rate=self.lowest_rates[index] if self.lowest_rates else None,
            highest_rate=self.highest_rates[index] if self.highest_rates else None,
            input_elements=self.input_elements[index] if self.input_elements else 0,
        )


def join_batches(batches: Sequence[ObservationBatch]) -> ObservationBatch:
    """Return successive batches of one layout, not none, as one."""
    if len(batches) == 1:
        return batches[0]
    missing = None
    if any(one.missing is not None for one in batches):
        known = [
            np.zeros(one.grad_norm.shape, np.bool_) if one.missing is None else one.missing for one in batches
        ]
        missing = np.concatenate(known)
    first = batches[0]
    return ObservationBatch(
        steps=[step for one in batches for step in one.steps],
        losses=[loss for one in batches for loss in one.losses],
        total_grad_norms=[norm for one in batches for norm in one.total_grad_norms],
        grad_norm=np.concatenate([one.grad_norm for one in batches]),
        grad_max_abs=np.concatenate([one.grad_max_abs for one in batches]),
        missing=missing,
        parameter_norms=[norms for one in batches for norms in one.parameter_norms],
        parameter_names=first.parameter_names,
        layer_names=first.layer_names,
        layer_of=first.layer_of,
        lowest_rates=[rate for one in batches for rate in one.lowest_rates],
        highest_rates=[rate for one in batches for rate in one.highest_rates],
        input_elements=[count for one in batches for count in one.input_elements or [0] * len(one)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One detector's verdict on one step. At most one finding of a kind per step and model."""

    kind: str
    severity: Severity
    subject: str
    """Layer or parameter name, or the series ("loss"): the first or the worst one."""
    message: str
    value: float | None
    threshold: float | None
    baseline: dict[str, float] | None = None
    neighbours: tuple[tuple[int, float], ...] = ()
    affected: tuple[str, ...] = ()
    """All affected parameters or layers, in model order."""
    advice: tuple[str, ...] = ()
    """What to try, where the kind alone does not tell; empty: what holds for every event of the kind."""


class Detector(Protocol):
    """Watches for one family of failures; keeps its own bounded history."""

    def observe(self, observation: Observation) -> list[Finding]:
        """Return what is wrong at this step; empty when nothing is. Never raises on NaN or Inf."""
        ...

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn the steps, just as `observe` would, if it is certain that none of them gives a finding.

        Returns:
            False, with nothing changed, where that is not certain: `observe` has to judge them one by one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorThresholds:
    """Options of the detectors: factors over the run's own robust history, and limits that are absolute."""

    warmup_steps: int = field(default=30)
    """Relative detectors stay quiet until they have seen this many healthy steps."""
    explosion_mads: float = field(default=12.0)
    """Gradient explosion: log norm above median + this many MADs ..."""
    explosion_factor: float = field(default=20.0)
    """... and norm above this many times the median."""
    vanishing_factor: float = field(default=1e-3)
    """Gradient vanishing: layer norm below this share of its own median, for `vanishing_steps` steps."""
    vanishing_steps: int = field(default=5)
    loss_spike_mads: float = field(default=12.0)
    """Loss spike: loss above median + this many MADs of the recent window ..."""
    loss_spike_factor: float = field(default=1.5)
    """... and above this many times the median."""
    zero_steps: int = field(default=10)
    """Zero gradient: exactly 0 for this many steps in a row (more for a layer that is often zero)."""
    explosion_norm: float | None = field(default=None)
    """Absolute limit, from the first step on: a global gradient norm above it is an explosion. None: none."""
    vanishing_norm: float | None = field(default=None)
    """Absolute limit, from the first step on: a layer whose gradient norm is below it, and not 0, for
    `vanishing_steps` steps in a row has vanished. None: none."""

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            ValueError: an option is out of range; names the option, the value and what is allowed.
        """
        require_in_range(self, _ALLOWED, _OPTIONAL)


def require_in_range(
    options: object, allowed: Mapping[str, tuple[float, float]], optional: Collection[str] = ()
) -> None:
    """Check options that are attributes.

    Args:
        options: the record that has them.
        allowed: the lowest and the highest value of each.
        optional: those that may be None.

    Raises:
        ValueError: an option is out of range; names the option, the value and what is allowed.
    """
    for name, (low, high) in allowed.items():
        value = getattr(options, name)
        if name in optional and value is None:
            continue
        if not low <= value <= high:
            others = " or None" if name in optional else ""
            raise ValueError(f"{name}={value!r} is not allowed: use {low:g} to {high:g}{others}")


_ALLOWED: Final[dict[str, tuple[float, float]]] = {
    "warmup_steps": (5, 100_000),
    "explosion_mads": (1.0, 1e6),
    "explosion_factor": (1.1, 1e12),
    "vanishing_factor": (1e-30, 0.5),
    "vanishing_steps": (1, 10_000),
    "loss_spike_mads": (1.0, 1e6),
    "loss_spike_factor": (1.01, 1e12),
    "zero_steps": (2, 100_000),
    "explosion_norm": (1e-30, 1e30),
    "vanishing_norm": (1e-300, 1e30),
}
_OPTIONAL: Final = ("explosion_norm", "vanishing_norm")
