"""Writes the events of exceptions, of those that the script catches too, and has bundles written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
from torch import nn
from torch.optim.optimizer import Optimizer

from ..delivery.recorder.recorder import Recorder
from ..guard import Guard
from ..settings.config import ProbeConfig
from ..threads.stacks import capture_stack
from ..wire import SEVERITIES, Event, RunStart, Severity, StackFrame, Stacks
from .event_bundles import EventBundles
from .event_writer import EventWriter
from .evidence import LateEvidence, StepEvidence
from .failed_collective import add_collective
from .failure_texts import describe_failure
from .seen_errors import SeenErrors

_ADVICE = (
    "The script caught this exception and continued; the stack shows where it was raised.",
    "What the handler left out (an update, a batch, a checkpoint) is missing from the training.",
)


class ErrorEvents(EventWriter):
    """Makes one event of an exception, and says more of it when more is known."""

    def __init__(
        self, start: RunStart, model: str, *, config: ProbeConfig, recorder: Recorder, guard: Guard
    ) -> None:
        super().__init__(start, model, config=config, recorder=recorder)
        self._guard = guard
        self._bundles = EventBundles(recorder, start, config)

    def exception(
        self,
        error: BaseException,
        trace: TracebackType | None,
        *,
        step: int,
        time: float,
        evidence: StepEvidence | None = None,
        model: nn.Module | None = None,
        optimizers: Sequence[Optimizer] = (),
        samples: int | None = None,
        errors: SeenErrors,
    ) -> Event:
        """Write the event of an exception that leaves the training script; a logger of the user's gets it.

        Args:
            error: the exception.
            trace: its traceback.
            step: number of the step under way.
            time: UNIX seconds.
            evidence: of the forward that raised it, where one did.
            model: the naming root, and
            optimizers: those that update it: to say what was alive when memory ran out.
            samples: of the step under way, where they are known.
            errors: those that have an event: where this one has, that event becomes critical.
        """
        fields = self._described(error, trace, step=step, model=model, optimizers=optimizers, samples=samples)
        is_new = errors.event_of(error) is None
        repetition = self._repetition(fields["kind"], fields["subject"], step) if is_new else 0
        event = self._new_event(step=step, time=time, ended=True, repetition=repetition, **fields)
        event = errors.take_over(error, event)
        if event.noticed_at is None:  # else a device has failed, of which nothing more is asked
            event = self._with_bundle(event, evidence)
        # Python itself prints it: nobody but a logger of the user's own is told.
        self.write(event, is_new=self._config.logger is not None)
        return event

    def caught(
        self,
        error: BaseException,
        trace: TracebackType | None,
        *,
        step: int,
        time: float,
        severity: Severity,
        data: dict[str, Any] | None,
        model: nn.Module | None,
        optimizers: Sequence[Optimizer],
    ) -> Event:
        """Write and log the event of an exception that the script has caught or is going to catch.

        Args:
            error: the exception.
            trace: its traceback, from the function that catches it.
            step: number of the step under way.
            time: UNIX seconds.
            severity: of the event.
            data: what the script says of it.
            model: the naming root, and
            optimizers: those that update it: to say what was alive when memory ran out.
        """
        fields = self._described(error, trace, step=step, model=model, optimizers=optimizers, samples=None)
        fields["stacks"] = Stacks(training_loop=with_callers(fields["stacks"].training_loop, capture_stack()))
        if fields["kind"] == "exception":
            fields["advice"] = list(_ADVICE)
        event = self._new_event(
            step=step,
            time=time,
            ended=True,
            data=data,
            repetition=self._repetition(fields["kind"], fields["subject"], step),
            **{**fields, "severity": severity},
        )
        self.write(event)
        return event

    def _described(
        self, error: BaseException, trace: TracebackType | None, *, step: int, **training: Any
    ) -> dict[str, Any]:
        """The fields of the event; of a collective that has raised also what other ranks wait in."""
        fields = describe_failure(error, trace, step=step, guard=self._guard, **training)
        folder, ranks = self._recorder.folder, self._start.world_size
        self._guard.run(
            "collective",
            lambda: add_collective(fields, error, trace, step=step, folder=folder, world_size=ranks),
        )
        return fields

    def add_to_caught(self, known: Event, severity: Severity, data: Mapping[str, Any] | None) -> Event:
        """Write what else is said of an exception that has an event; the worse severity stays."""
        worse = min(known.severity, severity, key=SEVERITIES.index)
        event = msgspec.structs.replace(
            known, severity=worse, data={**(known.data or {}), **(data or {})} or None
        )
        if event != known:
            self.write(event, is_new=False)
        return event

    def _with_bundle(self, event: Event, evidence: StepEvidence | LateEvidence | None) -> Event:
        """Have the bundle of a critical event written, unless its update is made; return the event."""
        if event.severity != "critical" or isinstance(evidence, LateEvidence):
            return event
        return self._bundles.add(event, evidence, self._guard)

    def bundle(self, event: Event, evidence: StepEvidence | None) -> Event:
        """Have the bundle written that was asked for with an event; return the event, which says where."""
        return self._bundles.add(event, evidence, self._guard, is_asked=True)


def with_callers(raised: Sequence[StackFrame], here: Sequence[StackFrame]) -> list[StackFrame]:
    """Put the callers of the function that caught an exception in front of the frames of its traceback.

    Args:
        raised: outermost first, from the function that caught it on.
        here: the stack of who records it, outermost first.
    """
    if not raised:
        return list(here)
    first = (raised[0].file, raised[0].function)
    place = next((i for i in reversed(range(len(here))) if (here[i].file, here[i].function) == first), 0)
    return [*here[:place], *raised]
