"""What the detectors of slow or sampled numbers are given: one step with whatever was measured of it.

The detectors of `base.py` see every step; those that take a `Sample` see a step only when something besides
gradients and loss was measured of it, or a few hundred milliseconds have passed. Numbers only, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .base import Finding

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSample:
    """What was measured of the model's modules at one step; NaN where a module has no value."""

    names: tuple[str, ...]
    """(modules,) as in `named_modules()`."""
    types: tuple[str, ...]
    """(modules,) class names."""
    columns: Mapping[str, Floats]
    """(modules,) values by the names of `module_frames.MODULE_COLUMNS`; of several calls, combined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSample:
    """What was measured of the floating-point tensors that the model was called with."""

    names: tuple[str, ...]
    """(inputs,) what the forward calls each argument."""
    max_abs: Floats
    """(inputs,) largest finite or infinite magnitude; NaN elements left out."""
    mean: Floats
    std: Floats
    nan_count: Floats
    inf_count: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One step as numbers. Arrays are (parameters,) float64 in layout order; None was not measured."""

    step: int
    time: float
    """UNIX seconds."""
    processor_share: float = 1.0
    """Share (0-1) of the time up to this step in which the training did not wait for a processor that others
    had; 1 where that is not known."""
    own_s: float = 0.0
    """Seconds up to this step, since the sample before, that were the probe's own."""
    loss: float | None
    """Summed over the micro-steps, unscaled; never NaN or Inf here."""
    total_grad_norm: float | None
    grad_norm: Floats | None
    """0 where the parameter has no gradient; see `missing`."""
    missing: npt.NDArray[np.bool_] | None
    """True where the parameter has no gradient at this step."""
    parameter_norm: Floats | None
    update_ratio: Floats | None
    """L2 norm of the newest measured update over that of the parameter; NaN where it is not known."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """What has one value per step, under the names of `wire.SCALARS`; logged values begin with ``log/``."""
    modules: ModuleSample | None = None
    inputs: InputSample | None = None
    calls_without_backward: int = 0
    """How many more calls of the model than backwards: the inputs' own loss may have been given to none."""
    input_elements: int = 0
    """Of the first input of each forward, added up; 0 when unknown."""
    parameter_names: tuple[str, ...]
    layer_names: tuple[str, ...]
    layer_of: npt.NDArray[np.intp]
    """(parameters,) index into `layer_names`; grouped: layers are contiguous and ascending."""
    parameter_std: Floats | None = None
    """Population standard deviation of each parameter's elements; wanted at the first step only."""
    is_matrix: npt.NDArray[np.bool_] | None = None
    """True where at least two dimensions of the parameter are larger than 1."""


class Succession:
    """Tells when what a detector remembers no longer holds: other parameters, or steps that go back."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None
        self._step = -1

    def begins_anew(self, sample: Sample) -> bool:
        """Account for one sample; True for the first one of a new layout or of a repeated stretch."""
        is_same = sample.parameter_names is self._names or sample.parameter_names == self._names
        is_new = not is_same or sample.step < self._step
        self._names, self._step = sample.parameter_names, sample.step
        return is_new


class ModuleSuccession:
    """The same for modules: whether rows still stand for the modules they stood for."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None
        self._step = -1

    def begins_anew(self, modules: ModuleSample, step: int) -> bool:
        """Account for one sample of the modules."""
        is_same = modules.names is self._names or modules.names == self._names
        is_new = not is_same or step < self._step
        self._names, self._step = modules.names, step
        return is_new


class SampleDetector(Protocol):
    """Watches for one family of failures in sampled numbers; keeps its own bounded history."""

    def observe(self, sample: Sample) -> list[Finding]:
        """Return what is wrong at this step, at most one finding of a kind; empty when nothing is."""
        ...


class Lasting:
    """What two measurements in a row have found: it is taken to hold until the next one.

    Attributes:
        findings: of the newest measurement; empty where the one before had none.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._was_found = False

    def note(self, findings: list[Finding]) -> list[Finding]:
        """Take what a measurement has found, and return it."""
        self.findings = list(findings) if self._was_found else []
        self._was_found = bool(findings)
        return findings
