"""What single outputs say: NaN or Inf in a module's output, and a model that always says the same."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..wire import Severity
from .activations import innermost
from .base import Finding
from .cause_advice import SOFTMAX_OF_ONE
from .layers import and_more, in_words
from .nonfinite import spell
from .sample import Floats, Lasting, ModuleSample, ModuleSuccession, Sample
from .sampled_thresholds import SampledThresholds

DEGENERATE_STEPS: Final = 10
"""A zero-initialised head says the same to everything until it has learnt a little."""
MIN_SAMPLES: Final = 2
LOSS_TOLERANCE: Final = 1e-3
"""A model whose output is the loss itself has one number to say."""


class NonFiniteActivationDetector:
    """Emits `nonfinite_activation`.

    -Inf alone is what masks are made of, and no fault. What was there from the first step on without harm to
    loss and gradients (a padded row that is masked later) is information.
    """

    def __init__(self) -> None:
        self._succession = ModuleSuccession()
        self._lasting = Lasting()
        self._clean = 0

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding when a module has returned NaN or Inf at this step, and what lasts."""
        modules = sample.modules
        if modules is None:
            return list(self._lasting.findings)
        if self._succession.begins_anew(modules, sample.step):
            self._clean, self._lasting = 0, Lasting()
        nan, inf = (modules.columns.get(f"activation_{name}_count") for name in ("nan", "inf"))
        if "activation_rms" not in modules.columns:
            return []
        bad = np.zeros(len(modules.names), dtype=np.bool_)
        if nan is not None:
            bad |= nan > 0.0
        if inf is not None:
            mean = modules.columns.get("activation_mean", np.full(len(bad), np.nan))
            bad |= (inf > 0.0) & (mean != -math.inf)
        if not bad.any():
            self._clean += 1
            return self._lasting.note([])
        rows = innermost(modules.names, np.flatnonzero(bad))
        return self._lasting.note([self._finding(sample, modules, rows, nan)])

    def _finding(self, sample: Sample, modules: ModuleSample, rows: list[int], nan: Floats | None) -> Finding:
        first = rows[0]
        is_nan = nan is not None and nan[first] > 0.0
        total = sample.total_grad_norm
        is_harmful = total is not None and not math.isfinite(total)
        severity: Severity = "critical" if is_harmful else "warning"
        harmless = ""
        if not (is_harmful or self._clean) and sample.loss is not None:
            severity, harmless = "info", "; it has been so from the start, and the loss is finite"
        value = math.nan if is_nan else math.inf
        return Finding(
            kind="nonfinite_activation",
            severity=severity,
            subject=modules.names[first],
            message=f"Output of {in_words(modules.names[first])} ({modules.types[first]}) holds "
            f"{spell(value)} at step {sample.step}{and_more(len(rows) - 1)}{harmless}",
            value=value,
            threshold=None,
            affected=tuple(modules.names[i] for i in rows),
        )


class DegenerateOutputDetector:
    """Emits `output_degenerate`, a warning: the model returns one number, whatever it is given."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._succession = ModuleSuccession()
        self._standing: list[Finding] = []
        self._run, self._since = 0, 0

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding while the root's output is constant; between measurements the last verdict."""
        modules = sample.modules
        if modules is None:
            return list(self._standing)
        if self._succession.begins_anew(modules, sample.step):
            self._run, self._standing = 0, []
        output = _root_output(modules)
        if output is None:
            return list(self._standing)
        mean, std, rms = output
        self._standing = []
        if not self._is_constant(sample, mean, std, rms):
            self._run = 0
            return []
        if not self._run:
            self._since = sample.step
        self._run += 1
        is_late = sample.step - self._since >= DEGENERATE_STEPS
        if self._run >= self._thresholds.sustained_samples and is_late:
            self._standing = [self._finding(sample, mean, std, rms)]
        return list(self._standing)

    def _is_constant(self, sample: Sample, mean: float, std: float, rms: float) -> bool:
        samples = sample.scalars.get("samples", 0.0)
        if not math.isfinite(rms) or samples < MIN_SAMPLES:
            return False
        loss = sample.loss
        if loss is not None and abs(mean - loss) <= LOSS_TOLERANCE * abs(loss):
            return False
        return std <= self._thresholds.degenerate_spread * rms

    def _finding(self, sample: Sample, mean: float, std: float, rms: float) -> Finding:
        return Finding(
            kind="output_degenerate",
            severity="warning",
            subject="",
            message=f"The model's output is {mean:.6g} everywhere at step {sample.step}, whatever the input, "
            f"since step {self._since} (standard deviation {std:.2g})",
            value=std,
            threshold=self._thresholds.degenerate_spread * rms,
            baseline={"since_step": float(self._since)},
            advice=SOFTMAX_OF_ONE if abs(mean - 1.0) <= self._thresholds.degenerate_spread else (),
        )


def _root_output(modules: ModuleSample) -> tuple[float, float, float] | None:
    """Mean, deviation and rms of what the root returns; None where that is not known, or one number."""
    if "" not in modules.names or not {"activation_std", "activation_rms"} <= set(modules.columns):
        return None
    row = modules.names.index("")
    units = modules.columns.get("units")
    if units is not None and math.isnan(units[row]):
        return None  # a single number (an entropy, a loss), or a part of the rows was not measured
    mean, std, rms = (float(modules.columns[f"activation_{name}"][row]) for name in ("mean", "std", "rms"))
    return None if math.isnan(std) or math.isnan(rms) else (mean, std, rms)
