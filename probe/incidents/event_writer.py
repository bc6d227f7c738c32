"""Writes and logs the events of one session: what every event has in common, and those that need no judging.

Used on the training thread, by the recorder's for what it judges, and where a session reports what it has
done itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ..delivery.recorder.recorder import Recorder
from ..detectors.advice import advice_for, advice_of
from ..detectors.base import Finding
from ..settings.config import ProbeConfig
from ..threads.stacks import capture_stack
from ..threads.user_lines import user_line
from ..wire import (
    MAX_TENSORS,
    Event,
    Evidence,
    NoticedAt,
    RunStart,
    Severity,
    StackFrame,
    Stacks,
    TensorFacts,
    event_id,
)
from ..wire.event_places import has_origin_line
from ..wire.event_texts import model_label
from ..wire.events import make_event
from .failure_texts import TEXT_LIMIT

_logger = logging.getLogger(__name__)
_LOG_LEVELS: Final[Mapping[Severity, int]] = {
    "critical": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
}
_WHOLE_STACKS: Final = 20
"""Events of one kind and subject whose stacks have the source around their lines."""
_MAX_SUBJECTS: Final = 4096
_SUBJECT_LIMIT: Final = 200
_MOST_IN_A_STEP: Final = 999
"""Events of one kind and subject at one step that are kept apart; a later one replaces the last of them."""


class EventWriter:
    """Makes events of one rank and one model, with deterministic ids."""

    def __init__(self, start: RunStart, model: str, *, config: ProbeConfig, recorder: Recorder) -> None:
        self._start, self._model = start, model
        self._config, self._recorder = config, recorder
        self._logger = config.logger or _logger
        self._counts: dict[tuple[str, str], int] = {}
        """How many events there were of each kind and subject."""
        self._repetitions: dict[tuple[str, str, int], int] = {}
        """How often the script has made an event of a kind and subject at a step, the newest last."""
        self._repetitions_lock = threading.RLock()

    def report(self, finding: Finding, step: int, time: float, *, stack: Sequence[StackFrame]) -> None:
        """Write and log an event that is complete: of what is judged beside the steps' detectors."""
        self.write(self.make(finding, step, time, stack=stack))

    def make(
        self,
        finding: Finding,
        step: int,
        time: float,
        *,
        stack: Sequence[StackFrame],
        ended: bool = True,
        is_own: bool = False,
    ) -> Event:
        """Make the event of a finding, which the caller writes.

        Args:
            finding: what was found.
            step: number of the step.
            time: UNIX seconds.
            stack: of the training loop.
            ended: whether it is over.
            is_own: another of its kind and subject at the same step is another event, not its next state.
        """
        return self._new_event(
            finding.kind,
            finding.subject,
            step=step,
            time=time,
            repetition=self._repetition(finding.kind, finding.subject, step) if is_own else 0,
            severity=finding.severity,
            message=finding.message[:TEXT_LIMIT],
            evidence=evidence_of(finding),
            propagated_to=list(finding.affected),
            stacks=Stacks(training_loop=list(stack)),
            advice=advice_of(finding),
            ended=ended,
        )

    def write(self, event: Event, *, is_new: bool = True) -> None:
        """Write a state of an event, and log the first one."""
        self._recorder.event(event)
        if is_new:
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
        advice: Sequence[str] = (),
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
            advice=list(advice) or advice_for(kind),
            ended=True,
        )
        self._recorder.event(event)
        self._announce(event)

    @property
    def model(self) -> str:
        """Name of the naming root."""
        return self._model

    @property
    def group(self) -> str:
        """Of the training that the session belongs to."""
        return self._start.group or self._start.run

    @property
    def is_open(self) -> bool:
        """Whether events are still written."""
        return self._recorder.is_open

    def note_for_training(
        self,
        kind: str,
        message: str,
        *,
        step: int,
        last_step: int,
        time: float,
        count: int,
        value: float | None,
        threshold: float,
        affected: Sequence[str] = (),
    ) -> None:
        """Write a state of the one event of a kind that all ranks and models of a training share."""
        identity = event_id(run=self.group, rank=0, incarnation=0, model="", kind=kind, subject=kind, step=0)
        event = self._new_event(
            kind,
            kind,
            step=step,
            time=time,
            severity="info",
            message=message[:TEXT_LIMIT],
            evidence=Evidence(value=value, threshold=threshold),
            propagated_to=list(affected),
            stacks=Stacks(training_loop=capture_stack()),
            advice=advice_for(kind),
            count=count,
            last_step=last_step,
            ended=True,
        )
        self.write(msgspec.structs.replace(event, id=identity), is_new=count == 1)

    def custom(
        self,
        message: str,
        data: Mapping[str, Any] | None = None,
        *,
        severity: Severity = "info",
        step: int,
        time: float,
    ) -> None:
        """Write and log an event of the user's own; `data` as `event_data.plain_data` gives them."""
        subject = message[:_SUBJECT_LIMIT]
        event = self._new_event(
            "custom",
            subject,
            step=step,
            time=time,
            repetition=self._repetition("custom", subject, step),
            severity=severity,
            message=message[:TEXT_LIMIT],
            stacks=Stacks(training_loop=capture_stack()),
            ended=True,
            data=None if data is None else dict(data),
        )
        self.write(event)

    def _repetition(self, kind: str, subject: str, step: int) -> int:
        """How many events of a kind and subject this step has had: what is meant as two stays two."""
        key = (kind, subject, step)
        with self._repetitions_lock:
            count = self._repetitions.pop(key, -1) + 1
            self._repetitions[key] = count
            if len(self._repetitions) > _MAX_SUBJECTS:
                del self._repetitions[next(iter(self._repetitions))]
        return min(count, _MOST_IN_A_STEP)

    def _new_event(self, kind: str, subject: str, *, step: int, time: float, **fields: Any) -> Event:
        """An event of this rank, with its deterministic id."""
        stacks: Stacks | None = fields.get("stacks")
        noticed_in: str | None = fields.pop("noticed_in", None)
        if stacks is not None:
            fields["stacks"] = self._bounded(kind, subject, stacks)
            if not has_origin_line(kind, fields.get("origin"), stacks):
                fields.setdefault("noticed_at", _noticed_at(stacks, noticed_in))
        return make_event(self._start, self._model, kind, subject, step=step, time=time, **fields)

    def _bounded(self, kind: str, subject: str, stacks: Stacks) -> Stacks:
        """Leave out the source around the lines of what has come often: events are never evicted."""
        key = (kind, subject)
        count = self._counts.get(key, 0) + 1
        if count > _WHOLE_STACKS or (key not in self._counts and len(self._counts) >= _MAX_SUBJECTS):
            return Stacks(**{name: _bare(getattr(stacks, name)) for name in stacks.__struct_fields__})
        self._counts[key] = count
        return stacks

    def _announce(self, event: Event) -> None:
        """Tell Python logging, and in `mode="warn"` the warnings module."""
        if self._recorder.is_own_thread:
            # The script may be stuck with a handler's lock: the thread that records waits for none.
            thread = threading.Thread(
                target=self._tell, args=(event,), name="nanscope-announcement", daemon=True
            )
            thread.start()
        else:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        first_line = model_label(event) + next(iter(event.message.splitlines()), "")
        # Where nobody has set logging up, Python itself would write the line to stderr.
        if not self._config.quiet or self._logger.hasHandlers():
            self._logger.log(_LOG_LEVELS[event.severity], "%s: %s", event.kind, first_line)
        if self._config.mode == "warn" and event.severity != "info":
            # Where the script has made warnings errors: it is `mode="raise"` that stops a training.
            with contextlib.suppress(RuntimeWarning):
                warnings.warn(f"{event.kind}: {first_line}", RuntimeWarning, stacklevel=2)


def _noticed_at(stacks: Stacks, module: str | None) -> NoticedAt | None:
    """The line that led to what was noticed: in forward, else where backward was called or the loop stood."""
    frame = user_line(stacks.forward or stacks.backward or stacks.training_loop)
    if frame is None:
        return None
    module = module if stacks.forward else None
    return NoticedAt(file=frame.file, line=frame.line, function=frame.function, module=module)


def _bare(frames: Sequence[StackFrame]) -> list[StackFrame]:
    return [msgspec.structs.replace(frame, code="") for frame in frames]


def evidence_of(finding: Finding, tensors: Sequence[TensorFacts] = ()) -> Evidence:
    """A finding's numbers, and the tensors that it is about, as an event carries them."""
    return Evidence(
        value=finding.value,
        threshold=finding.threshold,
        baseline=finding.baseline,
        neighbours=list(finding.neighbours),
        tensors=list(tensors[:MAX_TENSORS]),
    )
