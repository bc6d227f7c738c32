"""What was applied and measured in this process, for summaries; bounded. Any thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from ..analysis.call_results import Result
from .modes import WITH_AMP, OptimizationMode

_KEPT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMode(Result):
    """What a mode is called, where an enumeration's member is expected."""

    value: OptimizationMode


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationMetrics(Result):
    """One mode that was applied or measured."""

    mode: AppliedMode
    execution_time: float
    """Seconds of a training loop, or a measured step; 0 of a model that was only wrapped."""
    speedup_factor: float | None
    """Median over pairs of steps; None where it was not measured."""
    memory_savings: float | None
    """Fraction of a step's memory without the mode; None where it was not measured."""
    amp_enabled: bool


_metrics: deque[OptimizationMetrics] = deque(maxlen=_KEPT)
_counts = {"applied": 0}


def note_applied(mode: OptimizationMode) -> None:
    """A mode was applied to a model."""
    _counts["applied"] += 1
    note_metrics(mode)


def note_metrics(
    mode: OptimizationMode,
    *,
    execution_time: float = 0.0,
    speedup: float | None = None,
    memory_saved: float | None = None,
) -> OptimizationMetrics:
    """Keep what was measured of a mode, and return it."""
    made = OptimizationMetrics(
        mode=AppliedMode(value=mode),
        execution_time=execution_time,
        speedup_factor=speedup,
        memory_savings=memory_saved,
        amp_enabled=mode in WITH_AMP,
    )
    _metrics.append(made)
    return made


def applied_count() -> int:
    """How often a mode was applied to a model in this process."""
    return _counts["applied"]


def metrics() -> tuple[OptimizationMetrics, ...]:
    """The newest 1,000, oldest first."""
    return tuple(_metrics)
