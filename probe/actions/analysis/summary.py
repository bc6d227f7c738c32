"""`get_debug_summary`: what the analysis calls of a model or session have counted so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from . import tables
from .call_results import Result
from .monitoring import TrainingSummary, forget_monitor, get_training_summary
from .recorded import RecordedSummary
from .regions import RegionStatistics, RegionTable, process_regions


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugSummary(Result):
    """Counts, rates and times."""

    _derived = ("total_operations", "avg_execution_time_s", "max_execution_time_s")

    training: TrainingSummary
    """Of the steps that `monitor_training_step` saw."""
    regions: tuple[RegionStatistics, ...]
    """Of `debug_context` and `@debug_operation`."""
    anomaly_mode: bool
    """Whether autograd's anomaly mode is on now."""
    recorded: RecordedSummary | None = None
    """What the session has found and measured by itself; None where no session was asked."""

    @property
    def total_operations(self) -> int:
        """Runs through regions."""
        return sum(region.count for region in self.regions)

    @property
    def avg_execution_time_s(self) -> float | None:
        """Mean wall-clock seconds of a run through a region; None before the first."""
        total = sum(region.total_s for region in self.regions)
        return total / self.total_operations if self.total_operations else None

    @property
    def max_execution_time_s(self) -> float | None:
        """Longest run through a region; None before the first."""
        return max((region.max_s for region in self.regions), default=None)

    def __str__(self) -> str:
        """Steps, then a row for each region."""
        lines = [] if self.recorded is None else [str(self.recorded)]
        lines += [str(self.training), f"autograd's anomaly mode is {'on' if self.anomaly_mode else 'off'}"]
        rows = [
            (
                region.path,
                str(region.count),
                tables.duration(region.mean_s),
                tables.duration(region.max_s),
                tables.size(region.max_rss_delta_bytes),
                str(region.errors),
            )
            for region in self.regions
        ]
        if rows:
            header = ("region", "runs", "mean", "longest", "most memory", "errors")
            lines += tables.table(header, rows)
        return "\n".join(lines)


def get_debug_summary(model: nn.Module | None = None, *, regions: RegionTable | None = None) -> DebugSummary:
    """Summarise what was monitored and timed so far.

    Args:
        model: whose monitored steps are counted; None counts no steps.
        regions: those of a session; the process's own by default.

    Raises:
        ValueError: `model` is no module.
    """
    return DebugSummary(
        training=TrainingSummary() if model is None else get_training_summary(model),
        regions=(process_regions if regions is None else regions).rows(),
        anomaly_mode=torch.is_anomaly_enabled(),
    )


def clear_debug_history(model: nn.Module | None = None, *, regions: RegionTable | None = None) -> None:
    """Forget the monitored steps of a model, and all regions; what is in a run's journal stays."""
    if model is not None:
        forget_monitor(model)
    (process_regions if regions is None else regions).clear()
