"""What the modules return in a step that C follows: C calls back at its forwards and round its record.

The step stays in C; what modules return is measured as in the slow way, and added to the step's record. A
step that goes on in the slow way after all has what was measured up to then. Used on the training thread.
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from ..attach.observation.module_statistics import ModuleStatistics
from ..attach.watched_model import WatchedModel
from ..delivery.recorder.recorder import Recorder
from ..guard import Guard
from ..step.frames import modules_frame
from .followed_records import FollowedRecords
from .measure_schedule import MeasureSchedule
from .step_measures import StepMeasures


class FollowedModules:
    """One session's; nothing raises."""

    def __init__(
        self,
        model: WatchedModel,
        measures: StepMeasures,
        schedule: MeasureSchedule,
        *,
        recorder: Recorder,
        records: FollowedRecords,
        guard: Guard,
    ) -> None:
        self._model, self._measures, self._schedule = model, measures, schedule
        self._recorder, self._records, self._guard = recorder, records, guard
        self._collected: tuple[int, ModuleStatistics | None] | None = None

    def begin_forward(self, step: int, root: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward of a step begins at which modules' outputs are due."""
        if not self._measures.is_observing:
            self._schedule.begin_step(step)
        self._measures.begin_forward(root, args, kwargs, is_settled=True)

    def end_forward(self, output: Any = None, *, raised: bool = False) -> None:
        """It has returned, or raised; nothing where it is over already, or was none of these."""
        self._measures.end_forward(output, raised=raised)

    def collect(self, step: int) -> bool:
        """The step is about to be recorded; False where the newest layout does not name its modules."""
        return self._guard.run("measures", self._collect, step) or False

    def _collect(self, step: int) -> bool:
        if not self._model.has_named(self._measures.modules):
            return False
        modules, inputs = self._measures.collect_modules()
        self._collected = step, modules
        # Before the record is there: the recorder's thread may judge it at once.
        self._records.note_inputs(step, inputs)
        self._records.note_modules(step, modules)
        return True

    def add_collected(self) -> None:
        """The step is recorded: what its modules returned follows, and what else is read now and then."""
        self._guard.run("measures", self._add_collected)

    def _add_collected(self) -> None:
        collected, self._collected = self._collected, None
        if collected is None:
            return
        self._measures.forget_collected()
        scalars = self._measures.memory.read() if self._schedule.period("memory") else {}
        if self._guard.failures:
            scalars["probe_failures"] = float(self._guard.failures)
        step, modules = collected
        layout = self._model.layout.record.layout
        frame = modules_frame(modules, step=step, time=time.time(), layout=layout, scalars=scalars)
        self._recorder.frame(frame, is_addition=True)
