"""What the profiles of a session need of it, and the marks on profiled steps. Light: in every run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ...attach.watched_model import WatchedModel
from ...delivery.recorder.recorder import Recorder
from ...incidents.event_writer import EventWriter
from ..step_hooks import StepHooks

Log = Callable[[dict[str, Callable[[], float]]], None]


class Incidents(Protocol):
    """Who is told that a step is none to judge others by."""

    def note_look(self) -> None:
        """Something of ours has made the step under way take longer."""
        ...


class PauseListener(Protocol):
    """Who has to know of a time in which nothing was trained."""

    def leave_out(self, ns: int) -> None:
        """So long."""
        ...


class ProfileMarks:
    """Marks steps while somebody profiles: series `profiled`, and out of the budget and of what is slow.

    Args:
        hooks: a step that has ended is marked there.
        incidents: told of each step.
        log: adds to the newest step.
    """

    def __init__(self, hooks: StepHooks, incidents: Incidents, log: Log) -> None:
        self._hooks, self._incidents, self._log = hooks, incidents, log
        self._count = 0

    def begin(self) -> None:
        """The step under way is profiled, and those after it."""
        self._count += 1
        self._incidents.note_look()
        self._hooks.after_step.add(self._after_step, first=True)

    def end(self) -> None:
        """The step under way is the last one that the profile has made longer."""
        self._count = max(self._count - 1, 0)

    def _after_step(self, _: Any, step: int | None) -> None:
        if step is not None:
            self._log({"profiled": partial(float, 1.0)})
        if self._count:
            self._incidents.note_look()
        else:
            self._hooks.after_step.remove(self._after_step)


class ProfileParts:
    """Parts of a session.

    Args:
        model: whose modules give names.
        meters: leaves out the time in which a profile is written.
        recorder: has the run's folder, and takes the documents.
        incidents: makes the events.
        marks: marks the steps.
        hooks: of the steps.
    """

    __slots__ = ("hooks", "incidents", "marks", "meters", "model", "recorder")

    def __init__(
        self,
        model: WatchedModel,
        meters: PauseListener,
        *,
        recorder: Recorder,
        incidents: EventWriter,
        marks: ProfileMarks,
        hooks: StepHooks,
    ) -> None:
        self.model, self.meters, self.recorder = model, meters, recorder
        self.incidents, self.marks, self.hooks = incidents, marks, hooks
