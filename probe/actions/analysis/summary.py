"""`get_debug_summary`: what a session has recorded and the analysis calls have counted, as one mapping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...compat.torch_profiler import is_running
from ...delivery.host_memory import resident_bytes
from ...wire.run_summary import TRAINING_FIELDS
from ..optimisation.applied import applied_count
from . import tables
from .call_results import MappingResult
from .diffusion_results import DiffusionCounts
from .diffusion_samplings import HISTORY as DENOISING_HISTORY
from .diffusion_samplings import monitor
from .monitoring import TrainingSummary, forget_monitor, monitor_of
from .operations import MIB
from .recorded import HISTORY, RecordedSummary
from .regions import MAX_REGIONS, MAX_RUNS, RegionStatistics, RegionTable, process_regions
from .run_report import GRADIENT_KINDS
from .tensor_lives import MOST_TRACKED, tracked_count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DebugSummary(MappingResult):
    """Counts, rates and times; of a watched run since its start or its newest `run.clear()`.

    A dictionary, too: the keys of a training summary and the properties here, then what is nested.
    """

    _derived = (
        *("total_anomalies", "debug_history_length", "mode", "total_operations", "avg_execution_time"),
        *("max_execution_time", "avg_memory_usage", "total_optimizations", "gradient_violations"),
        *("gradient_anomalies", "event_counts", "profiling", "memory", "avg_execution_time_s"),
        *("max_execution_time_s", "history_sizes", "history_limits", "diffusion_debugger"),
    )

    training: TrainingSummary
    """Of the watched run; without one, of the steps that `monitor_training_step` saw."""
    regions: tuple[RegionStatistics, ...]
    """Of `debug_context` and `@debug_operation`."""
    anomaly_mode: bool
    """Whether autograd's anomaly mode is on now."""
    recorded: RecordedSummary | None = None
    """What the session has found and measured by itself; None where no session was asked."""
    monitored: TrainingSummary = field(default_factory=TrainingSummary)
    """Of the steps that `monitor_training_step` saw."""
    operations_kept: int = 0
    """Runs through regions that `run.debug_metrics` has."""

    @property
    def total_anomalies(self) -> int:
        """Events at warning or critical; without a run, such findings of `monitor_training_step`."""
        return self.training.total_anomalies

    @property
    def debug_history_length(self) -> int:
        """Events of every severity; without a run, the findings."""
        return self.training.total_anomalies if self.recorded is None else self.recorded.events

    @property
    def mode(self) -> str:
        """What is done about an anomaly besides recording it: detect, warn or raise."""
        return "detect" if self.recorded is None else self.recorded.mode

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
    def avg_execution_time(self) -> float:
        """The same; 0 before the first."""
        return self.avg_execution_time_s or 0.0

    @property
    def max_execution_time_s(self) -> float | None:
        """Longest run through a region; None before the first."""
        return max((region.max_s for region in self.regions), default=None)

    @property
    def max_execution_time(self) -> float:
        """The same; 0 before the first."""
        return self.max_execution_time_s or 0.0

    @property
    def avg_memory_usage(self) -> float:
        """Resident memory of the process at the ends of regions, on average, in MB of 2**20 bytes."""
        total = sum(region.total_rss_bytes for region in self.regions)
        return total / self.total_operations / MIB if self.total_operations else 0.0

    @property
    def total_optimizations(self) -> int:
        """How often a mode of `optimize_model` was applied to a model in this process."""
        return applied_count()

    @property
    def event_counts(self) -> dict[str, int]:
        """Events by kind, of every severity."""
        return {} if self.recorded is None else self.recorded.event_counts

    @property
    def gradient_violations(self) -> int:
        """Steps at which gradients were not as they should be, kind by kind."""
        if self.recorded is None:
            return self.training.gradient_explosions + self.training.gradient_vanishing
        found = self.recorded.steps_found
        return sum(steps for kind, steps in found.items() if kind in GRADIENT_KINDS)

    @property
    def gradient_anomalies(self) -> dict[str, int]:
        """The same by kind; empty without a run."""
        found = {} if self.recorded is None else self.recorded.steps_found
        return {kind: steps for kind, steps in found.items() if kind in GRADIENT_KINDS}

    @property
    def profiling(self) -> dict[str, Any]:
        """Whether a profiler of torch's is on now, and how many profiles the run has."""
        return {"active": is_running(), "profiles": self._documents("profile")}

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes in use now and at most, and how many snapshots and tracked tensors there are."""
        return {
            "process_rss_bytes": resident_bytes(),
            "peak_rss_bytes": None if self.recorded is None else self.recorded.peak_rss_bytes,
            "snapshots": self._documents("memory_snapshot"),
            "tracked_tensors": tracked_count(),
        }

    @property
    def diffusion_debugger(self) -> DiffusionCounts:
        """Of the denoising steps that were monitored in this process, of all pipelines."""
        return monitor.counts

    @property
    def history_sizes(self) -> dict[str, int]:
        """What is kept in memory for summaries; `history_limits` has the most of each."""
        return {
            "events": 0 if self.recorded is None else len(self.recorded.history),
            "regions": len(self.regions),
            "operations": self.operations_kept,
            "denoising_steps": monitor.counts.debug_history_length,
            "tracked_tensors": tracked_count(),
        }

    @property
    def history_limits(self) -> dict[str, int]:
        """How large each of `history_sizes` may become; the oldest go first."""
        return {
            "events": HISTORY,
            "regions": MAX_REGIONS + 1,
            "operations": MAX_RUNS,
            "denoising_steps": DENOISING_HISTORY,
            "tracked_tensors": MOST_TRACKED,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as builtins, the documented names first."""
        training = self.training.to_dict()
        found = {name: training[name] for name in TRAINING_FIELDS} | MappingResult.to_dict(self)
        del found["operations_kept"]
        return found

    def _documents(self, kind: str) -> int:
        return 0 if self.recorded is None else self.recorded.documents.get(kind, 0)

    def __str__(self) -> str:
        """Steps, then a row for each region."""
        lines = [] if self.recorded is None else [str(self.recorded)]
        lines += [str(self.training), f"autograd's anomaly mode is {'on' if self.anomaly_mode else 'off'}"]
        kept = [f"{size} of {self.history_limits[name]} {name}" for name, size in self.history_sizes.items()]
        lines.append(f"kept: {', '.join(kept)}".replace("_", " "))
        rows = [
            (
                region.path,
                str(region.count),
                tables.duration(region.mean_s),
                tables.duration(region.max_s),
                tables.size(region.max_rss_delta_bytes),
                str(region.errors),
                "" if region.gradient_anomalies is None else str(region.gradient_anomalies),
            )
            for region in self.regions
        ]
        if rows:
            header = ("region", "runs", "mean", "longest", "most memory", "errors", "gradient anomalies")
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
    table = process_regions if regions is None else regions
    training = TrainingSummary() if model is None else monitor_of(model).summary
    return DebugSummary(
        training=training,
        monitored=training,
        regions=table.rows(),
        anomaly_mode=torch.is_anomaly_enabled(),
        operations_kept=len(table.runs()),
    )


def clear_debug_history(model: nn.Module | None = None, *, regions: RegionTable | None = None) -> None:
    """Forget monitored steps of a model and of denoising, and all regions; a run's journal stays."""
    monitor.clear()
    if model is not None:
        forget_monitor(model)
    (process_regions if regions is None else regions).clear()
