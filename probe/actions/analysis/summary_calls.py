"""Calls of a session about regions of the script and about the run so far, and what all of them use of it.

A base of `AnalysisCalls`, which is mixed into `Probe`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ...delivery.recorder.recorder import Recorder
from ...guard import Guard
from ...settings.config import Mode
from ...wire import Severity

if TYPE_CHECKING:
    from .anomaly_mode import anomaly_detection
    from .monitoring import TrainingSummary
    from .parameters import ParameterSnapshot
    from .regions import RegionReport, RegionTable, debug_context
    from .summary import DebugSummary


class SummaryCalls:
    """Methods of `Probe`. Each is described at the function of the same name."""

    _regions: RegionTable | None = None

    if TYPE_CHECKING:
        _guard: Guard
        _recorder: Recorder | None
        active: bool
        mode: Mode

        def _watched_model(self) -> nn.Module | None:
            """The naming root; None when it is gone or the session is closed."""
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
    ) -> debug_context:
        """See `probe.debug_context`; times are series of the run, errors and slow runs events of it."""
        from .regions import debug_context

        return debug_context(
            name,
            anomaly=anomaly,
            slow_above_s=slow_above_s,
            logger=logger,
            table=self._own_regions(),
            on_end=lambda region, is_slow: self._record_region(region, is_slow=is_slow),
            session=self,
        )

    def debug_operation(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        anomaly: bool = False,
        slow_above_s: float | None = None,
        logger: logging.Logger | None = None,
    ) -> Any:
        """See `probe.debug_operation`; times are series of the run, errors and slow runs events of it."""
        from .regions import debug_operation

        return debug_operation(
            name, anomaly=anomaly, slow_above_s=slow_above_s, logger=logger, region=self.debug_context
        )

    def get_training_summary(self, model: nn.Module | None = None) -> TrainingSummary:
        """See `probe.get_training_summary`."""
        return self._summary(model).training

    def get_debug_summary(self, model: nn.Module | None = None) -> DebugSummary:
        """See `probe.get_debug_summary`; with the session's regions and what its journal has (`recorded`)."""
        from .recorded import summarise_recorded

        summary = self._summary(model)
        if self._recorder is None:
            return summary
        if self.active:
            self.flush()
        return replace(summary, recorded=summarise_recorded(self._recorder.folder, mode=self.mode))

    def _summary(self, model: nn.Module | None) -> DebugSummary:
        from .summary import get_debug_summary

        return get_debug_summary(
            model if model is not None else self._watched_model(), regions=self._own_regions()
        )

    def clear_debug_history(self, model: nn.Module | None = None) -> None:
        """See `probe.clear_debug_history`."""
        from .summary import clear_debug_history

        clear_debug_history(
            model if model is not None else self._watched_model(), regions=self._own_regions()
        )

    def save_debug_report(
        self,
        path: str | Path,
        *,
        model: nn.Module | None = None,
        since: ParameterSnapshot | None = None,
        optimizer: Optimizer | None = None,
    ) -> tuple[Path, Path]:
        """Write `<path>.json` and `<path>.txt`: series, events, gradients, parameters, regions, model so far.

        Args:
            path: without an ending; missing folders are made. Ranks above 0 add `-rank<number>`.
            model: the watched one, where the session is closed already.
            since: tells which parameters have changed since then.
            optimizer: tells which parameters it updates.

        Returns:
            Both paths.

        Raises:
            ValueError: this handle records nothing.
            OSError: the files cannot be written.
        """
        from .inspection import inspect_model
        from .parameters import check_model_parameters
        from .run_report import read_report

        if self._recorder is None:
            raise ValueError("there is no run to report on: this handle records nothing")
        if self.active:
            self.flush()
        model = model if model is not None else self._watched_model()
        extra: dict[str, Any] = {"analysis calls": self._summary(model)}
        if model is not None:
            extra["parameters"] = check_model_parameters(model, since=since, optimizer=optimizer)
            extra["model"] = inspect_model(model)
        report, stem = read_report(self._recorder.folder, extra=extra), Path(path)
        return report.save(stem.with_name(f"{stem.name}-rank{report.rank}") if report.rank else stem)

    def _own_regions(self) -> RegionTable:
        from .regions import RegionTable

        if self._regions is None:
            self._regions = RegionTable()
        return self._regions

    def _record_region(self, region: RegionReport, *, is_slow: bool) -> None:
        if not self.active:
            return
        self.log(**{f"region/{region.path}_s": region.duration_s})
        if is_slow:
            self.record_event(str(region), duration_s=region.duration_s)
