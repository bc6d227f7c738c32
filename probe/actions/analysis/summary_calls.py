"""Calls of a session about regions of the script and about the run so far, and what all of them use of it.

A base of `AnalysisCalls`, which is mixed into `Probe`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn

from ...attach.layout import unwrap
from ...delivery.recorder.recorder import Recorder
from ...guard import Guard
from ...incidents.incidents import IncidentReporter
from ...settings.config import Level, Mode
from ...wire import Severity

if TYPE_CHECKING:
    from ...wire.region_times import RegionBody
    from .anomaly_mode import anomaly_detection
    from .monitoring import TrainingSummary
    from .operations import OperationMetrics
    from .region_records import RegionRecords
    from .regions import Progress, RegionReport, RegionStatistics, RegionTable, debug_context
    from .summary import DebugSummary


class SummaryCalls:
    """Methods of `Probe`. Each is described at the function of the same name."""

    _regions: RegionTable | None = None
    _region_records: RegionRecords | None = None

    if TYPE_CHECKING:
        _guard: Guard
        _recorder: Recorder | None
        _incidents: IncidentReporter | None
        active: bool
        mode: Mode

        def _watched_model(self) -> nn.Module | None:
            """The naming root; None when it is gone or the session is closed."""
            ...

        def _level_now(self) -> Level:
            """The level that is in force; of a closed session its last one."""
            ...

        def _complain(self, name: str, problem: str) -> None:
            """Log a misuse inside the training loop, once a name."""
            ...

        def _log_deferred(self, values: Mapping[str, Callable[[], float]]) -> None:
            """Record numbers, by their full series names, that are read when the frame is written."""
            ...

        def log(self, **values: Any) -> None:
            """Record numbers with the most recent backward."""
            ...

        def flush(self) -> None:
            """Wait until everything recorded so far is in the journal."""
            ...

        def record_document(self, body: Any, *, kind: str, key: str) -> None:
            """Write something that was measured as a whole."""
            ...

        def _step_under_way(self) -> tuple[int, int] | None:
            """The step under way and how many backwards it has had; None where nothing is recorded."""
            ...

        def record_event(self, message: str, /, *, severity: str = "info", **data: Any) -> None:
            """Put an event of one's own on the timeline."""
            ...

        def track_error(
            self,
            error: BaseException,
            *,
            severity: str = "warning",
            category: Any = None,
            context: Mapping[str, Any] | None = None,
        ) -> None:
            """Record an exception that the script has caught."""
            ...

        def note_error(
            self,
            error: BaseException,
            trace: TracebackType | None,
            *,
            severity: Severity = "warning",
            data: Mapping[str, Any],
        ) -> None:
            """Record an exception that may be caught further out."""
            ...

    def anomaly_detection(self, enabled: bool | None = None, *, check_nan: bool = True) -> anomaly_detection:
        """See `probe.anomaly_detection`."""
        from .anomaly_mode import anomaly_detection

        return anomaly_detection(enabled, check_nan=check_nan)

    def debug_context(
        self,
        name: str = "operation",
        *,
        anomaly: bool = False,
        slow_above_s: float | None = None,
        logger: logging.Logger | None = None,
        enabled: bool | None = None,
    ) -> debug_context:
        """See `probe.debug_context`; times are series of the run, errors and slow runs events of it."""
        from .regions import debug_context

        return debug_context(
            name,
            anomaly=anomaly,
            slow_above_s=slow_above_s,
            logger=logger,
            table=self.region_table,
            progress=self.region_progress,
            on_end=self.record_region,
            session=self,
            enabled=enabled,
            is_on=self.keeps_regions,
        )

    def debug_operation(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        anomaly: bool = False,
        slow_above_s: float | None = None,
        logger: logging.Logger | None = None,
        enabled: bool | None = None,
    ) -> Any:
        """See `probe.debug_operation`; times are series of the run, errors and slow runs events of it."""
        from .decorated_regions import debug_operation

        return debug_operation(
            name,
            anomaly=anomaly,
            slow_above_s=slow_above_s,
            logger=logger,
            enabled=enabled,
            region=self.debug_context,
        )

    def get_training_summary(self, model: nn.Module | None = None) -> TrainingSummary:
        """Counts and rates of the watched run, from what was recorded; see `probe.get_training_summary`."""
        return self.get_debug_summary(model).training

    def get_debug_summary(self, model: nn.Module | None = None) -> DebugSummary:
        """All that was recorded, monitored and timed, as one mapping; see `probe.get_debug_summary`.

        Of another model than the watched one, the training summary is of its monitored steps.
        """
        return self._debug_summary(model, is_whole=False)

    def _debug_summary(self, model: nn.Module | None, *, is_whole: bool) -> DebugSummary:
        """Since the newest clearing; whole it stands in a report, beside all events and series."""
        from .recorded import summarise_recorded

        summary = self._summary(model)
        if self._recorder is None:
            return summary
        if self.active:
            self.flush()
        recorded = summarise_recorded(self._recorder.folder, mode=self.mode, is_whole=is_whole)
        is_own = model is None or self._watched_model() is None or unwrap(model) is self._watched_model()
        training = recorded.training if is_own else summary.training
        return replace(summary, recorded=recorded, training=training)

    @property
    def debug_metrics(self) -> tuple[OperationMetrics, ...]:
        """The newest 1000 runs through the session's regions, each with its times and memory."""
        from .operations import MIB, OperationMetrics, OperationMode

        records = self._region_records
        return tuple(
            OperationMetrics(
                mode=OperationMode(run.path),
                execution_time=run.duration_s,
                memory_usage=run.rss_bytes / MIB,
                memory_delta=run.rss_delta_bytes / MIB,
                gpu_memory=None if run.cuda_bytes is None else run.cuda_bytes / MIB,
                gradient_anomalies=() if records is None else records.anomalies_at(run.steps),
                error=run.error,
            )
            for run in self.region_table().runs()
        )

    def _summary(self, model: nn.Module | None) -> DebugSummary:
        from .summary import get_debug_summary

        summary = get_debug_summary(
            model if model is not None else self._watched_model(), regions=self.region_table()
        )
        records = self._region_records
        return (
            summary
            if records is None
            else replace(summary, regions=tuple(map(records.completed, summary.regions)))
        )

    def keeps_regions(self) -> bool:
        """Whether a region that does not say so itself is kept: not at level off."""
        return self._level_now() != "off"

    def region_table(self) -> RegionTable:
        """Statistics of the session's regions."""
        from .regions import RegionTable

        if self._regions is None:
            self._regions = RegionTable()
        return self._regions

    def record_region(self, region: RegionReport, row: RegionStatistics, limit_s: float | None) -> bool:
        """Account for one run through a region; whether it is recorded."""
        if not self.active:
            return False
        self.log(**{f"region/{region.path}_s": region.duration_s})
        self._guard.run("regions", self._take_region, region, row, limit_s)
        return True

    def _take_region(self, region: RegionReport, row: RegionStatistics, limit_s: float | None) -> None:
        progress = self.region_progress()
        if self._region_records is None:
            self._region_records = self._new_region_records()
        if self._region_records is not None and progress is not None:
            self._region_records.take(region, row, limit_s, step=progress.step, now=time.time())

    def _new_region_records(self) -> RegionRecords | None:
        from .region_records import RegionRecords

        recorder, incidents = self._recorder, self._incidents
        if recorder is None or incidents is None:
            return None

        def write(body: RegionBody, kind: str, key: str) -> None:
            self.record_document(body, kind=kind, key=key)

        return RegionRecords(incidents, lambda: recorder.tally.gradient_anomalies, write)

    def region_progress(self) -> Progress | None:
        """Where the training is; None where nothing is recorded."""
        from .regions import Progress

        where = self._step_under_way()
        return None if where is None else Progress(*where)

    def _forget_analysis(self, model: nn.Module | None) -> None:
        """Forget the regions, and the monitored steps of a model."""
        from .summary import clear_debug_history

        clear_debug_history(model, regions=self.region_table())
        if self._region_records is not None:
            self._region_records.clear()
