"""What a session's run has found and measured so far, for `run.get_debug_summary()`. Reads its journal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import tables
from .call_results import Result
from .run_report import EpochMemory, RunReport, read_report

_HISTORY: Final = 100
_LOSS_KINDS: Final = ("nonfinite_loss", "loss_spike", "loss_divergence", "loss_plateau")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSummary(Result):
    """Events and times of one rank of one run; an anomaly is an event at warning or above."""

    run: str
    mode: str
    """What is done about an anomaly besides recording it: detect, warn or raise."""
    total_steps: int
    """In the journal: the newest step comes when the next one begins."""
    total_anomalies: int
    event_counts: dict[str, int]
    """Events by kind, of every severity."""
    severity_counts: dict[str, int]
    steps_found: dict[str, int]
    """By kind, the steps at which it was found: an event lasts."""
    rates: dict[str, float]
    """By kind, `steps_found` over `total_steps`."""
    loss_anomalies: int
    """Events about the loss."""
    step_time_mean_s: float | None
    step_time_max_s: float | None
    peak_rss_bytes: float | None
    """Of the process, read about once a second."""
    epochs: tuple[EpochMemory, ...]
    """Memory at the end of each epoch, see `RunReport.epochs`."""
    history: tuple[dict[str, Any], ...]
    """The newest 100 events: step, kind, severity, subject, count and the message's first line."""

    def __str__(self) -> str:
        """A line of totals, then a row for each kind."""
        counted = f"run {self.run} ({self.mode}): {self.total_steps} steps, {self.total_anomalies} anomalies"
        rows = [(kind, str(count), str(self.steps_found[kind])) for kind, count in self.event_counts.items()]
        return "\n".join([counted, *(tables.table(("event", "count", "steps"), rows) if rows else ())])


def summarise_recorded(writer: Path, *, mode: str) -> RecordedSummary:
    """Read what one incarnation of one rank has written so far; see `read_report`."""
    report = read_report(writer)
    steps = 0 if report.last_step is None else report.last_step + 1
    found: Counter[str] = Counter()
    for event in report.events:
        found[event["kind"]] += event["count"]
    series = {one.name: one for one in report.series}
    step_time, memory = series.get("step_time_s"), series.get("process_rss_bytes")
    return RecordedSummary(
        run=report.run,
        mode=mode,
        total_steps=steps,
        total_anomalies=sum(report.severity_counts.get(name, 0) for name in ("critical", "warning")),
        event_counts=report.event_counts,
        severity_counts=report.severity_counts,
        steps_found=dict(found),
        rates={kind: count / steps for kind, count in found.items()} if steps else {},
        loss_anomalies=sum(report.event_counts.get(kind, 0) for kind in _LOSS_KINDS),
        step_time_mean_s=None if step_time is None else step_time.mean,
        step_time_max_s=None if step_time is None else step_time.high,
        peak_rss_bytes=None if memory is None else memory.high,
        epochs=report.epochs,
        history=_history(report),
    )


def _history(report: RunReport) -> tuple[dict[str, Any], ...]:
    shown = ("step", "kind", "severity", "subject", "count")
    return tuple(
        {name: event[name] for name in shown} | {"message": event["message"].partition("\n")[0]}
        for event in report.events[-_HISTORY:]
    )
