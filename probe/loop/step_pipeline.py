"""Takes each finished step through measure -> judge -> write, in order, and keeps the newest one open.

The training loop hands the steps over, on the training thread. Until the next backward begins `run.log` may
add to the newest one; then it is complete, and is shown to the rules and to the detectors of samples.
"""

from __future__ import annotations

import time
from typing import Final

from torch.optim.optimizer import Optimizer

from ..actions.step_hooks import StepHooks
from ..errors import AnomalyError
from ..forensics.capture import RootCapture
from ..guard import Guard
from ..incidents.evidence import StepEvidence
from ..incidents.incidents import IncidentReporter
from ..incidents.lasting import LastingFault
from ..measure.update_meter import UpdateRatios
from ..step.frames import MeasuredStep
from ..step.open_step import FinishedStep, LogValue, OpenStep
from ..step.step_meters import StepMeters
from .measure_schedule import MeasureSchedule
from .step_judge import StepJudge
from .step_measures import StepMeasures
from .step_queue import QueuedStep
from .step_writer import StepWriter

_LATE_FRAME_S: Final = 0.5
"""A finished step waits at most this long for `run.log` once the next forward begins."""


class StepPipeline:
    """The three parts in a line, and the step that was finished last.

    Args:
        measures, judge, writer: take each step, one after the other.
        schedule: follows what steps cost, and the commands between two of them.
        meters: read the time.
        hooks: what looks at complete steps is called.
        incidents: whose lock is held while a step is changed that another thread may be judging.
        guard: of the training thread.
        first_step: number of the first step.

    Attributes:
        last_step: number of the newest finished step; None before the first.
    """

    def __init__(
        self,
        measures: StepMeasures,
        judge: StepJudge,
        writer: StepWriter,
        *,
        schedule: MeasureSchedule,
        meters: StepMeters,
        hooks: StepHooks,
        incidents: IncidentReporter,
        guard: Guard,
        first_step: int = 0,
    ) -> None:
        self._measures, self._judge, self._writer = measures, judge, writer
        self._first_step = first_step
        self._schedule, self._meters, self._hooks = schedule, meters, hooks
        self._incidents, self._guard = incidents, guard
        self.last_step: int | None = None
        self._newest: QueuedStep | None = None
        """The step finished last, until it is complete."""

    @property
    def next_step(self) -> int:
        """Number of the step that is under way, or about to begin."""
        return self._first_step if self.last_step is None else self.last_step + 1

    @property
    def fault(self) -> LastingFault | None:
        """See `StepJudge.fault`."""
        return self._judge.fault

    def begin_step(self, upcoming: int | None = None) -> None:
        """A step begins: decide what is measured of it, and when it is to be judged.

        Args:
            upcoming: its number; None where it follows the one before.
        """
        step, since = self.next_step, None
        if upcoming is not None and upcoming != step:
            step, since = upcoming, self.last_step
        self._schedule.begin_step(step, since=since)
        self._judge.begin_step(step)

    def finish(self, finished: FinishedStep) -> None:
        """Measure what else is due, have the step judged, and put its frame into the ring."""
        self.settle()
        measured = self._measures.measure(finished, waits=self._judge.waits)
        is_late = measured.late is not None
        newest = QueuedStep(measured, (), "late" if is_late else "judged", time.monotonic())
        self._judge.judge(finished, newest)
        if unused := finished.opened.unused():
            for note in self._hooks.unused_forward.calls:
                note(unused, measured.step)
        self.complete_newest()
        self._newest = newest
        self.last_step = measured.step
        self._writer.write_modules(measured)
        if self._schedule.features.memory:
            self._judge.follow_memory(measured.step)
        self._account(measured)
        self._judge.enqueue(newest)
        if is_late:
            # It is written when its values are here, perhaps by now.
            return
        self._judge.judge_accounted(finished, measured)
        self._writer.write(measured)
        if self._hooks.pause.calls:
            # Who looks at the page meanwhile sees the step.
            self._judge.judge_all()
            self.complete_newest()
            self._hold()

    def settle(self) -> None:
        """Take in what the step before was waiting for, and what the detectors have found meanwhile."""
        self._take_ratios()
        newest = self._newest
        if newest is not None and newest.state == "late":
            self._judge.settle()
        if newest is not None and not (newest.is_open or newest.is_complete):
            self._complete(newest)
        self._writer.write_late_logs()
        self._judge.take_verdicts()

    def _account(self, measured: MeasuredStep) -> None:
        """Account for the time, and follow commands, between two steps."""
        measured.taken = taken = self._meters.read_time()
        if taken is not None:
            self._guard.run("measures", self._schedule.end_step, measured, taken)
        self._follow_commands(measured.step)

    def _follow_commands(self, step: int) -> None:
        if self._schedule.mailbox.waiting:
            self._schedule.apply_commands(step)

    def _hold(self) -> None:
        for call in self._hooks.pause.calls:
            call()

    def pass_step(self, step: int) -> None:
        """Count a step of which nothing is looked at; only commands are followed."""
        self.complete_newest()
        self.last_step = step
        self._meters.forget_time()
        self._follow_commands(step)

    def resume_after(self, step: int) -> None:
        """Go on behind steps up to this one, which came another way."""
        self.last_step = step

    def reopen(self, measured: MeasuredStep) -> None:
        """The newest of these is complete once another one begins: what is logged until then is for it."""
        self._newest = QueuedStep(measured, (), "judged", time.monotonic())

    # -- the newest step

    def look_after_update(self, optimizer: Optimizer) -> None:
        """Take what the update has changed, on a step that asks for it."""
        ratios = self._measures.after_update(optimizer, self.last_step or 0)
        if ratios is not None:
            self._add_ratios(ratios)

    def _take_ratios(self, *, wait: bool = False) -> None:
        """Take what earlier updates have changed, where a device had yet to say it."""
        while (ratios := self._measures.late_ratios(wait=wait)) is not None:
            self._add_ratios(ratios)

    def _add_ratios(self, ratios: UpdateRatios) -> None:
        """Add update-to-weight ratios to the frame of their step, or write them in one of their own."""
        sampled = {"update_ratio": ratios.ratio}
        scalars = {} if ratios.total is None else {"update_ratio": ratios.total}
        newest = self._newest
        is_of_newest = newest is not None and newest.measured.step == ratios.step
        if newest is not None and is_of_newest:
            with self._incidents.lock:
                newest.measured.sampled |= sampled
                newest.measured.scalars |= scalars
                if newest.state == "late":
                    return
        self._writer.add_sampled(ratios.step, sampled, scalars, is_addition=is_of_newest)

    def log(self, values: dict[str, LogValue]) -> None:
        """Add values to the newest step; too late for its frame, they become one of their own."""
        newest, step = self._newest, self.last_step
        # A late one is not written yet, even where nothing more was expected of it.
        if newest is not None and (newest.is_open or newest.state == "late") and newest.measured.step == step:
            newest.measured.logged |= values
            if newest.state == "late":
                with self._incidents.lock:
                    if newest.state == "late":
                        return
        if step is not None:
            self._writer.add(step, values)

    def add(self, step: int, values: dict[str, LogValue]) -> None:
        """Write more of a step that came another way."""
        self._writer.add(step, values)

    def complete_late(self) -> None:
        """Close the newest step where `run.log` has taken too long."""
        newest = self._newest
        if newest is not None and time.monotonic() - newest.ended_s > _LATE_FRAME_S:
            self.complete_newest()

    def complete_newest(self) -> None:
        """Nothing can be added to the newest step any more: have the rules and the samples' judge see it."""
        newest = self._newest
        if newest is None or not newest.is_open:
            return
        newest.is_open = False
        if newest.state != "late":
            self._complete(newest)

    def _complete(self, newest: QueuedStep) -> None:
        newest.is_complete, self._newest = True, None
        measured = newest.measured
        had_statistics = measured.has_statistics
        for call in self._hooks.complete.calls:
            call(measured)
        if measured.has_statistics and not had_statistics:
            self._writer.add_columns(measured)
        self._judge.judge_sample(measured)
        self._hold()

    # -- ends, and what is asked in between

    def take_anomaly(self) -> AnomalyError | None:
        """Return what `mode="raise"` has to raise, once; the caller has left the guard."""
        return self._judge.take_anomaly()

    def judge_all(self) -> None:
        """Have the detectors look at every step so far; waits for what is on its way."""
        self._judge.judge_all()

    def evidence_of_exception(self, opened: OpenStep, failed: RootCapture | None) -> StepEvidence:
        """What is at hand of a step that ends in an exception; `failed` is of the forward that raised it."""
        self.settle()
        return self._judge.evidence_of_exception(opened, failed)

    def close(self) -> None:
        """Have everything judged, completed and written; waits for what is on its way."""
        self._take_ratios(wait=True)
        self.settle()
        self.judge_all()
        self.complete_newest()
        self.settle()
        self._writer.close()

    def forget(self) -> None:
        """Drop what has not been written."""
        self._newest = None
        self._writer.forget()
        self._judge.forget()
