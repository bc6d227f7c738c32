"""Writes and logs the events of one session: what every event has in common, and those that need no judging.

Used on the training thread, and where a session reports what it has done itself.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .config import ProbeConfig
from .detectors.advice import advice_for
from .detectors.base import Finding
from .failure_texts import TEXT_LIMIT
from .forensics.stacks import capture_stack
from .recorder import Recorder
from .wire import Event, Evidence, RunStart, Severity, StackFrame, Stacks, event_id

_logger = logging.getLogger(__name__)
_LOG_LEVELS: Final[Mapping[Severity, int]] = {
    "critical": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
}


class EventWriter:
    """Makes events of one rank and one model, with deterministic ids."""

    def __init__(self, start: RunStart, model: str, *, config: ProbeConfig, recorder: Recorder) -> None:
        self._start, self._model = start, model
        self._config, self._recorder = config, recorder
        self._logger = config.logger or _logger

    def report(self, finding: Finding, step: int, time: float, *, stack: Sequence[StackFrame]) -> None:
        """Write and log an event that is complete: of what is judged beside the steps' detectors."""
        event = self._new_event(
            finding.kind,
            finding.subject,
            step=step,
            time=time,
            severity=finding.severity,
            message=finding.message[:TEXT_LIMIT],
            evidence=evidence_of(finding),
            propagated_to=list(finding.affected),
            stacks=Stacks(training_loop=list(stack)),
            advice=advice_for(finding.kind),
            ended=True,
        )
        self._recorder.event(event)
        self._announce(event)

    def note(
        self,
        kind: str,
        subject: str,
        message: str,
        *,
        step: int,
        time: float,
        value: float | None = None,
        threshold: float | None = None,
    ) -> None:
        """Write an event of the probe's own doing, severity info: a change of what is measured."""
        event = self._new_event(
            kind,
            subject,
            step=step,
            time=time,
            severity="info",
            message=message[:TEXT_LIMIT],
            evidence=Evidence(value=value, threshold=threshold),
            stacks=Stacks(training_loop=capture_stack()),
            advice=advice_for(kind),
            ended=True,
        )
        self._recorder.event(event)
        self._announce(event)

    def custom(self, message: str, data: Mapping[str, float], *, step: int, time: float) -> None:
        """Write an event of the user's own."""
        self._recorder.event(
            self._new_event(
                "custom",
                message[:200],
                step=step,
                time=time,
                severity="info",
                message=message[:TEXT_LIMIT],
                evidence=Evidence(baseline=dict(data) or None),
                stacks=Stacks(training_loop=capture_stack()),
                ended=True,
            )
        )

    def _new_event(self, kind: str, subject: str, *, step: int, time: float, **fields: Any) -> Event:
        """An event of this rank, with its deterministic id."""
        identity = event_id(
            run=self._start.run,
            rank=self._start.rank,
            incarnation=self._start.incarnation,
            model=self._model,
            kind=kind,
            subject=subject,
            step=step,
        )
        return Event(
            id=identity,
            run=self._start.run,
            rank=self._start.rank,
            incarnation=self._start.incarnation,
            model=self._model,
            kind=kind,
            subject=subject,
            step=step,
            time=time,
            last_step=step,
            **fields,
        )

    def _announce(self, event: Event) -> None:
        """Tell Python logging, and in `mode="warn"` the warnings module."""
        first_line = event.message.splitlines()[0]
        self._logger.log(_LOG_LEVELS[event.severity], "%s: %s", event.kind, first_line)
        if self._config.mode == "warn" and event.severity != "info":
            warnings.warn(f"{event.kind}: {first_line}", RuntimeWarning, stacklevel=2)


def evidence_of(finding: Finding) -> Evidence:
    """A finding's numbers, as an event carries them."""
    return Evidence(
        value=finding.value,
        threshold=finding.threshold,
        baseline=finding.baseline,
        neighbours=list(finding.neighbours),
    )
