"""Options of the detectors that work on sampled numbers: one frozen record, its ranges checked when made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .base import require_in_range


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledThresholds:
    """Factors over the run's own history, shares, and limits that are absolute.

    Raises:
        ValueError: an option is out of range; names the option, the value and what is allowed.
    """

    stuck_steps: int = field(default=20)
    """Parameter not updated: it has a gradient and stays exactly what it was for this many steps."""
    update_ratio_limit: float = field(default=1.0)
    """Update ratio high: one update of the whole model is this many times its norm, and the loss rises."""
    update_ratio_sustained: float = field(default=0.3)
    """The same for `sustained_samples` samples in a row in which the loss does not fall."""
    update_ratio_growth: float = field(default=5.0)
    """Or it is this many times the largest before it, and the loss rises."""
    update_ratio_floor: float = field(default=1e-7)
    """Update ratio low: the median over the parameters was never above it."""
    sustained_samples: int = field(default=3)
    """Samples in a row for what must last."""
    dead_share: float = field(default=0.75)
    """Dead units: this share of a layer's units (0-1), after fewer were dead."""
    saturated_share: float = field(default=0.9)
    """Saturated activation: this share of a hidden layer's outputs (0-1) at the limits."""
    degenerate_spread: float = field(default=1e-6)
    """Output degenerate: standard deviation of the model's output below this share of its size."""
    initial_ratio: float = field(default=1e4)
    """Poor initialization: size of the outputs between the first and the last of the layers of a type."""
    plateau_steps: int = field(default=300)
    """Loss plateau: no change from the start, or at the level of guessing, for this many steps ..."""
    plateau_change: float = field(default=0.01)
    """... and no change of more than this share of the loss."""
    overfitting_rise: float = field(default=0.1)
    """Overfitting: the validation loss is above its minimum by this share of it ..."""
    overfitting_evaluations: int = field(default=3)
    """... at this many evaluations in a row, while the training loss falls."""
    input_mads: float = field(default=12.0)
    """Input out of range: log of the largest magnitude above its median by this many MADs ..."""
    input_factor: float = field(default=20.0)
    """... and the magnitude above this many times the median."""
    input_limit: float | None = field(default=None)
    """Absolute limit on the magnitude of any input. None: none."""
    accumulated_steps: int = field(default=3)
    """Accumulated gradient: updates in a row before which the gradients were not cleared."""
    slowdown_factor: float = field(default=1.5)
    """Performance degradation: steps take this many times as long as at first (a warning from 2.0 on) ..."""
    slowdown_steps: int = field(default=50)
    """... for this many steps ..."""
    slowdown_s: float = field(default=10.0)
    """... and this many seconds."""
    anomaly_rate: float = field(default=0.1)
    """High anomaly rate: share of the last `anomaly_window` steps with a warning or worse."""
    anomaly_window: int = field(default=200)

    def __post_init__(self) -> None:
        require_in_range(self, _ALLOWED, _OPTIONAL)


_ALLOWED: Final[dict[str, tuple[float, float]]] = {
    "stuck_steps": (2, 1_000_000),
    "update_ratio_limit": (1e-6, 1e12),
    "update_ratio_sustained": (1e-6, 1e12),
    "update_ratio_growth": (1.1, 1e12),
    "update_ratio_floor": (0.0, 1.0),
    "sustained_samples": (1, 100_000),
    "dead_share": (0.01, 1.0),
    "saturated_share": (0.01, 1.0),
    "degenerate_spread": (0.0, 0.5),
    "initial_ratio": (2.0, 1e300),
    "plateau_steps": (20, 100_000_000),
    "plateau_change": (1e-9, 0.5),
    "overfitting_rise": (1e-6, 1e6),
    "overfitting_evaluations": (2, 10_000),
    "input_mads": (1.0, 1e6),
    "input_factor": (1.1, 1e300),
    "input_limit": (1e-300, 1e300),
    "accumulated_steps": (1, 10_000),
    "slowdown_factor": (1.05, 1e6),
    "slowdown_steps": (2, 1_000_000),
    "slowdown_s": (0.0, 1e6),
    "anomaly_rate": (0.001, 1.0),
    "anomaly_window": (20, 1_000_000),
}
_OPTIONAL: Final = ("input_limit",)
