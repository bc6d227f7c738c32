"""`monitor_training_step`: judges the step under way by the same detectors as a watched run, on request.

Keeps a bounded history for each model, from which `get_training_summary` tells counts and rates.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from ...attach.layout import ModelLayout
from ...compat.weak_tables import WeakTable
from ...detectors import default_detectors
from ...detectors.base import DetectorThresholds, Finding, Observation
from ...detectors.gradient_limits import OutsideLimit, outside_limits
from ...measure.statistics.statistics import Floats, TensorStatistics, tensor_statistics
from ...wire import Severity
from ...wire.run_summary import LOSS_KINDS, TRAINING_FIELDS
from . import tables
from .call_results import MappingResult, Result
from .gradient_checks import require_layout, require_module

_logger = logging.getLogger(__name__)
_LOG_LEVELS: Final[Mapping[Severity, int]] = {
    "critical": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding(Result):
    """One thing that is wrong at a step."""

    kind: str
    """As for events: `gradient_explosion`, `nonfinite_loss`, ..."""
    severity: str
    subject: str
    """Layer, parameter or series."""
    message: str
    value: float | None
    threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredStep(Result):
    """One step as `monitor_training_step` saw it."""

    _derived = ("ok",)

    step: int
    loss: float | None
    total_norm: float | None
    """Global L2 norm of the gradients; None when no parameter has one."""
    findings: tuple[StepFinding, ...]
    note: str = ""

    @property
    def ok(self) -> bool:
        """Nothing at severity warning or critical was found."""
        return all(finding.severity == "info" for finding in self.findings)

    def __str__(self) -> str:
        """A line, and one for each finding."""
        lines = [
            f"step {self.step}: {'ok' if self.ok else 'NOT OK'}, loss {tables.number(self.loss)}, "
            f"gradient norm {tables.number(self.total_norm)}"
        ]
        lines += [f"  {finding.severity}: {finding.kind}: {finding.message}" for finding in self.findings]
        return "\n".join([*lines, f"  {self.note}"] if self.note else lines)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainingSummary(MappingResult):
    """Counts in steps, rates as fractions (0-1) of them: of a watched run, or of the monitored steps.

    A dictionary, too: its first keys are the nine of `RunCounts.training`.
    """

    _derived = ("anomaly_rate", "loss_anomaly_rate", "gradient_explosion_rate", "gradient_vanishing_rate")

    total_steps: int = 0
    anomaly_steps: int = 0
    """Steps with a finding at severity warning or critical."""
    total_anomalies: int = 0
    """Such findings."""
    gradient_explosions: int = 0
    gradient_vanishing: int = 0
    loss_anomalies: int = 0
    nonfinite_steps: int = 0
    """Steps with NaN or Inf in loss or gradients."""
    last_step: int | None = None
    best_loss: float | None = None
    """Smallest finite loss."""
    last_loss: float | None = None
    max_total_norm: float | None = None
    """Largest finite global gradient norm."""

    @property
    def anomaly_rate(self) -> float:
        """Share of steps with an anomaly."""
        return self._rate(self.anomaly_steps)

    @property
    def loss_anomaly_rate(self) -> float:
        """Share of steps with an anomaly of the loss."""
        return self._rate(self.loss_anomalies)

    @property
    def gradient_explosion_rate(self) -> float:
        """Share of steps with exploding gradients."""
        return self._rate(self.gradient_explosions)

    @property
    def gradient_vanishing_rate(self) -> float:
        """Share of steps with vanishing gradients."""
        return self._rate(self.gradient_vanishing)

    def _rate(self, count: int) -> float:
        return min(1.0, count / self.total_steps) if self.total_steps else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the result as builtins, the documented names first."""
        found = MappingResult.to_dict(self)
        return {name: found[name] for name in TRAINING_FIELDS} | found

    def __str__(self) -> str:
        """Three lines."""
        return (
            f"{self.total_steps:,} steps, {self.anomaly_steps:,} with anomalies "
            f"({self.anomaly_rate:.2%}), {self.nonfinite_steps:,} with NaN or Inf\n"
            f"  gradient explosions {self.gradient_explosions:,}, vanishing {self.gradient_vanishing:,}, "
            f"loss anomalies {self.loss_anomalies:,}\n"
            f"  loss {tables.number(self.last_loss)}, best {tables.number(self.best_loss)}, "
            f"largest gradient norm {tables.number(self.max_total_norm)}"
        )


class StepMonitor:
    """Detectors and counts of one model; thread-safe. A change of the model's parameters begins anew."""

    def __init__(self, thresholds: DetectorThresholds | None = None) -> None:
        self._lock = threading.Lock()
        self._thresholds = thresholds or DetectorThresholds()
        self._names: tuple[str, ...] = ()
        self._detectors = default_detectors(self._thresholds)
        self._summary = TrainingSummary()

    @property
    def summary(self) -> TrainingSummary:
        """What has been counted so far."""
        return self._summary

    def observe(
        self,
        model: nn.Module,
        loss: Tensor | float | None,
        step: int,
        *,
        explosion_threshold: float | None,
        vanishing_threshold: float | None,
    ) -> MonitoredStep:
        """Measure and judge; see `monitor_training_step`."""
        layout = require_layout(model)
        value = _loss_value(loss)
        gradients = tensor_statistics([parameter.grad for parameter in layout.parameters])
        with self._lock:
            if layout.names != self._names:
                self._names, self._detectors = layout.names, default_detectors(self._thresholds)
            observation = _observation(layout, gradients, value, step)
            findings = [f for detector in self._detectors for f in detector.observe(observation)]
            judged = [_finding(finding) for finding in findings]
            judged += _absolute(layout, gradients, step, explosion_threshold, vanishing_threshold)
            result = MonitoredStep(
                step=step,
                loss=value,
                total_norm=gradients.total_norm,
                findings=tuple(judged),
                note="" if gradients.total_norm is not None else "no parameter has a gradient",
            )
            self._summary = _counted(self._summary, result)
        return result


_monitors: WeakTable[nn.Module, StepMonitor] = WeakTable()
_monitors_lock = threading.Lock()


def monitor_training_step(
    model: nn.Module,
    loss: Tensor | float | None,
    step: int,
    *,
    explosion_threshold: float | None = None,
    vanishing_threshold: float | None = None,
    logger: logging.Logger | None = None,
) -> MonitoredStep:
    """Judge a step after its backward and before its update; findings go to Python logging.

    The detectors are those of a watched run: relative to the history of this model's earlier calls, quiet
    about explosions and spikes in the first 30. `watch` does all this by itself at every step. Waits for the
    device.

    Args:
        model: with the gradients of the step.
        loss: of the step, one number; None when it is not known.
        step: its number, 0-based.
        explosion_threshold: also report parameters with a gradient norm (L2) above this; off by default,
            because what is normal depends on the model (10.0 is customary).
        vanishing_threshold: also report those below this (1e-6 is customary).
        logger: gets the findings: critical as ERROR, warning as WARNING, info as INFO.

    Raises:
        ValueError: no module, nothing trainable in it, or a loss that is not one number.
    """
    result = monitor_of(model).observe(
        model,
        loss,
        step,
        explosion_threshold=explosion_threshold,
        vanishing_threshold=vanishing_threshold,
    )
    log_findings(result, logger or _logger)
    return result


def get_training_summary(model: nn.Module) -> TrainingSummary:
    """Return counts and rates over the steps of `monitor_training_step` for this model.

    Raises:
        ValueError: it is no module.
    """
    return monitor_of(model).summary


def monitor_of(model: nn.Module) -> StepMonitor:
    """The monitor of a model, made at first use; it lives as long as the model does."""
    root = require_module(model)
    with _monitors_lock:
        monitor = _monitors.get(root)
        if monitor is None:
            monitor = _monitors[root] = StepMonitor()
        return monitor


def forget_monitor(model: nn.Module) -> None:
    """Drop a model's history and counts."""
    with _monitors_lock:
        _monitors.pop(require_module(model), None)


def log_findings(step: MonitoredStep, logger: logging.Logger) -> None:
    """Send the findings to Python logging, at the level of their severity."""
    for finding in step.findings:
        level = _LOG_LEVELS.get(finding.severity, logging.WARNING)  # type: ignore[call-overload]
        logger.log(level, "step %d: %s: %s", step.step, finding.kind, finding.message)


def _loss_value(loss: Tensor | float | None) -> float | None:
    if loss is None:
        return None
    if isinstance(loss, Tensor) and (loss.numel() != 1 or loss.is_complex()):
        raise ValueError(f"the loss must be one real number, got shape {tuple(loss.shape)}")
    try:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError):
        raise ValueError(f"the loss must be one number, got {type(loss).__name__}") from None


def _observation(
    layout: ModelLayout, gradients: TensorStatistics, loss: float | None, step: int
) -> Observation:
    return Observation(
        step=step,
        loss=loss,
        total_grad_norm=gradients.total_norm,
        grad_norm=gradients.norm,
        grad_max_abs=gradients.max_abs,
        grad_nan_count=gradients.nan_count,
        grad_inf_count=gradients.inf_count,
        missing=gradients.missing,
        parameter_norm=None,
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
    )


def _finding(finding: Finding) -> StepFinding:
    return StepFinding(
        kind=finding.kind,
        severity=finding.severity,
        subject=finding.subject,
        message=finding.message,
        value=finding.value,
        threshold=finding.threshold,
    )


def _absolute(
    layout: ModelLayout,
    gradients: TensorStatistics,
    step: int,
    explosion_threshold: float | None,
    vanishing_threshold: float | None,
) -> list[StepFinding]:
    """Say which norms are outside of the caller's own limits."""
    there = np.flatnonzero(~gradients.missing)
    norms = gradients.norm[there]
    found = outside_limits(norms, explosion=explosion_threshold, vanishing=vanishing_threshold)
    names = [layout.names[row] for row in there]
    return [_outside(names, norms, outside, step) for outside in found]


def _outside(names: Sequence[str], norms: Floats, outside: OutsideLimit, step: int) -> StepFinding:
    worst = int(outside.rows[0])
    value, name = float(norms[worst]), names[worst]
    side = "above" if outside.kind == "gradient_explosion" else "below"
    return StepFinding(
        kind=outside.kind,
        severity="warning",
        subject=name,
        message=f"{len(outside.rows)} parameters have a gradient norm {side} "
        f"{tables.number(outside.limit)} at step {step}, worst {name} ({tables.number(value)})",
        value=value,
        threshold=outside.limit,
    )


def _counted(summary: TrainingSummary, step: MonitoredStep) -> TrainingSummary:
    bad = [finding for finding in step.findings if finding.severity != "info"]
    kinds = {finding.kind for finding in bad}
    loss = step.loss if step.loss is not None and math.isfinite(step.loss) else None
    norm = step.total_norm if step.total_norm is not None and math.isfinite(step.total_norm) else None
    return TrainingSummary(
        total_steps=summary.total_steps + 1,
        anomaly_steps=summary.anomaly_steps + bool(bad),
        total_anomalies=summary.total_anomalies + len(bad),
        gradient_explosions=summary.gradient_explosions + ("gradient_explosion" in kinds),
        gradient_vanishing=summary.gradient_vanishing + ("gradient_vanishing" in kinds),
        loss_anomalies=summary.loss_anomalies + bool(kinds & LOSS_KINDS),
        nonfinite_steps=summary.nonfinite_steps + any(kind.startswith("nonfinite") for kind in kinds),
        last_step=step.step,
        best_loss=min((v for v in (summary.best_loss, loss) if v is not None), default=None),
        last_loss=step.loss if step.loss is not None else summary.last_loss,
        max_total_norm=max((v for v in (summary.max_total_norm, norm) if v is not None), default=None),
    )
