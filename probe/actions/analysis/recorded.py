"""What a session's run has found and measured so far, for its summaries. Reads its journal.

Everything counts from the newest `run.clear()` on, but in a report.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...wire import Event
from ...wire.event_json import event_json
from ...wire.run_summary import RunCounts, count_run, since_cleared
from . import tables
from .call_results import Result
from .monitoring import TrainingSummary
from .report_contents import Contents, EpochMemory, read_contents
from .report_curves import SeriesSummary

HISTORY: Final = 100
_EPOCHS: Final = 1000


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
    """Steps with an event about the loss."""
    step_time_mean_s: float | None
    step_time_max_s: float | None
    peak_rss_bytes: float | None
    """Of the process, read about once a second."""
    epochs: tuple[EpochMemory, ...]
    """Memory at the end of each epoch, see `RunReport.epochs`."""
    documents: dict[str, int]
    """What was measured as a whole (memory snapshots, profiles, regions), by kind; since the start."""
    training: TrainingSummary
    """Counts and rates under the documented names."""
    history: tuple[dict[str, Any], ...]
    """The newest 100 events: step, kind, severity, subject, count and the message's first line."""

    @property
    def events(self) -> int:
        """Events of every severity."""
        return sum(self.event_counts.values())

    def __str__(self) -> str:
        """A line of totals, then a row for each kind."""
        counted = f"run {self.run} ({self.mode}): {self.total_steps} steps, {self.total_anomalies} anomalies"
        rows = [(kind, str(count), str(self.steps_found[kind])) for kind, count in self.event_counts.items()]
        return "\n".join([counted, *(tables.table(("event", "count", "steps"), rows) if rows else ())])


def summarise_recorded(writer: Path, *, mode: str, is_whole: bool = False) -> RecordedSummary:
    """Read what one incarnation of one rank has written so far; see `read_contents`.

    Args:
        writer: its folder.
        mode: what is done about an anomaly.
        is_whole: what came before a clearing too.
    """
    contents = read_contents(writer, only_since_cleared=not is_whole)
    known = list(contents.events.values())
    counts = count_run(known, contents.total_steps, is_whole=is_whole)
    events = sorted(
        known if is_whole else since_cleared(known)[0], key=lambda event: (event.step, event.time)
    )
    series = {name: summary.summary(name) for name, summary in contents.series.items()}
    step_time, memory = series.get("step_time_s"), series.get("process_rss_bytes")
    return RecordedSummary(
        run=writer.parent.name,
        mode=mode,
        total_steps=counts.total_steps,
        total_anomalies=counts.total_anomalies,
        event_counts=counts.events_by_kind,
        severity_counts=counts.events_by_severity,
        steps_found=counts.steps_by_kind,
        rates={kind: counts.rate(steps) for kind, steps in counts.steps_by_kind.items()},
        loss_anomalies=counts.loss_anomalies,
        step_time_mean_s=None if step_time is None else step_time.mean,
        step_time_max_s=None if step_time is None else step_time.high,
        peak_rss_bytes=None if memory is None else memory.high,
        epochs=tuple(contents.epochs.values())[-_EPOCHS:],
        documents=dict(Counter(kind for kind, _ in contents.documents)),
        training=_training(contents, counts, series),
        history=_history(events),
    )


def _training(contents: Contents, counts: RunCounts, series: dict[str, SeriesSummary]) -> TrainingSummary:
    loss, norm = series.get("loss"), series.get("grad_norm")
    return TrainingSummary(
        total_steps=counts.total_steps,
        anomaly_steps=counts.anomaly_steps,
        total_anomalies=counts.total_anomalies,
        gradient_explosions=counts.gradient_explosions,
        gradient_vanishing=counts.gradient_vanishing,
        loss_anomalies=counts.loss_anomalies,
        nonfinite_steps=counts.nonfinite_steps,
        last_step=contents.last_step,
        best_loss=None if loss is None else loss.low,
        last_loss=None if loss is None else loss.last,
        max_total_norm=None if norm is None else norm.high,
    )


def _history(events: list[Event]) -> tuple[dict[str, Any], ...]:
    shown = ("step", "kind", "severity", "subject", "count")
    plain = [event_json(event) for event in events[-HISTORY:]]
    return tuple(
        {name: event[name] for name in shown} | {"message": event["message"].partition("\n")[0]}
        for event in plain
    )
