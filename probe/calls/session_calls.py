"""Summaries, reports and regions of the session that runs; without one, of the process itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..actions.analysis import decorated_regions, regions, summary
from ..actions.analysis.monitoring import TrainingSummary, monitor_of
from ..actions.analysis.regions import Progress, RegionReport, RegionStatistics, RegionTable
from ..actions.analysis.summary import DebugSummary
from ..session import Probe, running_session, running_sessions
from ..settings.config import is_off_by_environment


def get_training_summary(model: nn.Module | None = None) -> TrainingSummary:
    """Return counts and rates of a training: `summary["anomaly_rate"]`, `json.dumps(summary)`.

    Of a watched model they are of everything that was recorded since the start or the newest `clear`, of any
    other of the steps that `monitor_training_step` saw.

    Args:
        model: None is the one that was watched last; with none, the counts are 0.

    Raises:
        ValueError: it is no module.
    """
    session = _session_of(model)
    if session is not None:
        return session.get_training_summary()
    return TrainingSummary() if model is None else monitor_of(model).summary


def get_debug_summary(model: nn.Module | None = None) -> DebugSummary:
    """Return all that is known of a training as one mapping: anomalies, gradients, events, times, memory.

    Args:
        model: None is the one that was watched last; with none, only the regions are counted. Regions are
            those of the session and those of `probe.debug_context`.

    Raises:
        ValueError: it is no module.
    """
    own = summary.get_debug_summary(model)
    session = _session_of(model)
    if session is None:
        return own
    found = session.get_debug_summary()
    return replace(
        found,
        regions=(*found.regions, *own.regions),
        operations_kept=found.operations_kept + own.operations_kept,
    )


def save_debug_report(path: str | Path | None = None) -> Path:
    """Write a report of the run that was begun last; see `Probe.save_debug_report`.

    Raises:
        ValueError: nothing is being recorded.
        OSError: the file cannot be written.
    """
    session = _session_of(None)
    if session is None:
        raise ValueError("there is no run to report on: nothing is watched now; call it before run.close()")
    return session.save_debug_report(path)


def clear_debug_history(
    model: nn.Module | None = None, *, report: str | Path | bool | None = None
) -> Path | None:
    """Forget the monitored steps of a model, all regions, and what its session has found; see `Probe.clear`.

    Args:
        model: None is the one that was watched last, if any.
        report: of a session: written first; None and True are the default name, False writes none.

    Returns:
        The report's file; None where none was written.

    Raises:
        ValueError: it is no module.
    """
    session = _session_of(model)
    summary.clear_debug_history(model)
    return None if session is None else session.clear(report=report)


def debug_context(
    name: str = "operation",
    *,
    anomaly: bool = False,
    slow_above_s: float | None = None,
    logger: logging.Logger | None = None,
    enabled: bool | None = None,
) -> regions.debug_context:
    """Name a region: its time and memory are measured and kept. Nests, is re-entrant, lets exceptions pass.

    Costs about 50 us. `report` of what is returned holds the newest run through it. While a training is
    watched, its page shows the region, and one that is slow is an event.

    Args:
        name: what the region is called.
        anomaly: autograd's anomaly mode inside, see `anomaly_detection`.
        slow_above_s: while the newest 20 runs through the region take longer on average, it is slow: that is
            one event, or without a session one warning in the log. None never is.
        logger: gets that warning, and the exceptions that leave the region.
        enabled: False leaves the region alone, True always measures. None does so too unless the level of
            the run is off at its beginning, or, without a run, that of the environment: then `report` is all
            that there is of the region, nothing is kept or told.

    Raises:
        ValueError: an empty name, or a limit that is not above 0.
    """
    return regions.debug_context(
        name,
        anomaly=anomaly,
        slow_above_s=slow_above_s,
        logger=logger,
        table=_table,
        progress=_progress,
        on_end=_tell_session,
        enabled=enabled,
        is_on=_is_on,
    )


def debug_operation(
    name: str | Callable[..., Any] | None = None,
    *,
    anomaly: bool = False,
    slow_above_s: float | None = None,
    logger: logging.Logger | None = None,
    enabled: bool | None = None,
) -> Any:
    """Decorate a function so that each call is a region (see `debug_context`): `@debug_operation("step")`.

    The function keeps its name, signature and result; a coroutine function stays one. Also without
    parentheses: `@debug_operation`.

    Args:
        name: of the region; the function's qualified name by default.
        anomaly: autograd's anomaly mode inside, see `anomaly_detection`.
        slow_above_s: average seconds of a call above which it is slow, see `debug_context`.
        logger: gets that warning, and the exceptions that leave the function.
        enabled: as in `debug_context`, for each call.

    Raises:
        ValueError: what is decorated is no function or coroutine function.
    """
    return decorated_regions.debug_operation(
        name,
        anomaly=anomaly,
        slow_above_s=slow_above_s,
        logger=logger,
        enabled=enabled,
        region=debug_context,
    )


def _session_of(model: nn.Module | None) -> Probe | None:
    """The session that watches a model, or any module; the newest one where none is named."""
    if model is not None:
        return running_session(model) if isinstance(model, nn.Module) else None
    sessions = running_sessions()
    return sessions[-1] if sessions else None


def _is_on() -> bool:
    session = _session_of(None)
    return not is_off_by_environment() if session is None else session.keeps_regions()


def _table() -> RegionTable:
    session = _session_of(None)
    return regions.process_regions if session is None else session.region_table()


def _progress() -> Progress | None:
    session = _session_of(None)
    return None if session is None else session.region_progress()


def _tell_session(report: RegionReport, row: RegionStatistics, limit_s: float | None) -> bool:
    session = _session_of(None)
    return session is not None and session.record_region(report, row, limit_s)
