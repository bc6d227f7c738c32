"""What the calls about denoising steps return. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import tables
from .call_results import MappingResult
from .monitoring import StepFinding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DiffusionStep(MappingResult):
    """The latents after one denoising step; a dictionary, too: `seen["std"]`."""

    _derived = ("ok", "has_nan", "has_inf", "drift")

    step: int
    """Its number within the sampling."""
    timestep: float | None
    """Of the scheduler, at which the model was called."""
    shape: tuple[int | None, ...]
    dtype: str
    norm: float | None
    """L2 norm of all elements."""
    mean: float | None
    std: float | None
    """Population standard deviation of all elements."""
    min: float | None
    max: float | None
    nan_count: int
    inf_count: int
    expected_std: float | None
    """What the scheduler implies after this step; None where it does not tell."""
    findings: tuple[StepFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not self.findings

    @property
    def has_nan(self) -> bool:
        """There is a NaN among the latents."""
        return self.nan_count > 0

    @property
    def has_inf(self) -> bool:
        """There is an Inf among the latents."""
        return self.inf_count > 0

    @property
    def drift(self) -> float | None:
        """`std` as a multiple of `expected_std`; None where one of them is not known, or is 0."""
        if self.std is None or not self.expected_std or not math.isfinite(self.std):
            return None
        return self.std / self.expected_std

    def __str__(self) -> str:
        """A line, and one for each finding."""
        at = "" if self.timestep is None else f" (timestep {self.timestep:g})"
        lines = [
            f"denoising step {self.step}{at}: {'ok' if self.ok else 'NOT OK'}, std {tables.number(self.std)} "
            f"(expected {tables.number(self.expected_std)}), "
            f"{tables.number(self.min)} to {tables.number(self.max)}"
        ]
        return "\n".join([*lines, *(f"  {one.severity}: {one.kind}: {one.message}" for one in self.findings)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DiffusionCounts(MappingResult):
    """Counts of all denoising steps that were monitored in this process; a dictionary, too."""

    total_steps: int = 0
    samplings: int = 0
    """A sampling begins where the step's number does not go up."""
    total_anomalies: int = 0
    """Steps with NaN or Inf, or out of scale."""
    nonfinite_steps: int = 0
    drift_steps: int = 0
    debug_history_length: int = 0
    """Steps that are kept, at most 1,000."""
