"""Has finished steps judged: by the detectors, by the detectors of sampled numbers, by what watches memory.

The second of the three that take a step in turn: measure, judge, write. A step whose values are all finite
waits in the `StepQueue` for a few others; one that is not is judged at once, before its update, unless it is
bad as the one before and only counts in an open event: such steps wait too. On the training thread, but for
what arrives late or waits: that is judged on the recorder's.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from ..actions.step_hooks import StepHooks
from ..attach.layout import ModelLayout
from ..attach.watched_model import WatchedModel
from ..delivery.host_memory import MemorySample
from ..errors import AnomalyError
from ..forensics.capture import RootCapture
from ..guard import Guard
from ..incidents.evidence import LateEvidence, StepEvidence
from ..incidents.incidents import IncidentReporter
from ..incidents.lasting import LastingFault
from ..incidents.verdict import NOTHING_FOUND, Verdict
from ..memory.leak_watch import LeakWatch
from ..settings.config import Mode
from ..step.frames import MeasuredStep, build_observation
from ..step.open_step import FinishedStep, OpenStep
from ..threads.stacks import raw_stack
from .measure_schedule import MeasureSchedule
from .sample_judge import SampleJudge
from .step_queue import QueuedStep, StepQueue
from .verdict_timing import VerdictTiming

_STACK_FRAMES: Final = 64


class StepJudge:
    """Judges the steps of one session, in order.

    Args:
        model: the watched one.
        schedule: is told of suspicions; says whether an event tells of the modules.
        samples: judges what is sampled.
        timing: says whether a step may be judged after its update.
        leaks: follows memory.
        mode: what is done about an anomaly.
        judges_each: whether each step has to be judged before its update.
        incidents: makes events of what is found.
        hooks: what acts on a step is called.
        write: takes a step that was late when its values are here, on either thread.
        guard: of the training thread.

    Attributes:
        queue: finished steps that the detectors have not seen.
    """

    def __init__(
        self,
        model: WatchedModel,
        schedule: MeasureSchedule,
        samples: SampleJudge,
        timing: VerdictTiming,
        leaks: LeakWatch,
        *,
        mode: Mode,
        judges_each: bool,
        incidents: IncidentReporter,
        hooks: StepHooks,
        write: Callable[[MeasuredStep], None],
        guard: Guard,
    ) -> None:
        self._model, self._schedule, self._samples = model, schedule, samples
        self._timing, self._leaks, self._incidents = timing, leaks, incidents
        self._hooks, self._write = hooks, write
        self._guard, self._recorder_guard = guard, guard.for_thread()
        self._raises = mode == "raise"
        self._judges_each = judges_each or self._raises
        self._anomaly: AnomalyError | None = None
        self._fault: LastingFault | None = None
        self._fault_at: tuple[int, ModelLayout | None] = 0, None
        """Step and layout."""
        self.queue = StepQueue(incidents, guard, arrive=self._arrive, note_alarms=samples.note_alarms)
        samples.unjudged_from = self.queue.unjudged_from

    def begin_step(self, step: int) -> None:
        """A step begins: decide when it is to be judged."""
        self._timing.begin_step(step, is_needed=self._is_needed)

    def _is_needed(self) -> bool:
        return self._acts_on_verdicts or bool(self._hooks.measured.calls)

    @property
    def _acts_on_verdicts(self) -> bool:
        return self._raises or self._hooks.act_on_verdicts

    @property
    def waits(self) -> bool:
        """Whether the step under way is judged with all its values, before its update."""
        return self._acts_on_verdicts or not self._timing.is_late

    def judge(self, finished: FinishedStep, newest: QueuedStep) -> Verdict:
        """Judge a step before its update, or have a quiet one wait for a few others.

        Returns:
            What was found; nothing as long as it waits.
        """
        measured, verdict = newest.measured, NOTHING_FOUND
        self._incidents.recent.note_mode(measured.step, is_training=self._model.root.training)
        if newest.state == "late":
            self._fault = None
            return verdict
        is_quiet = measured.is_quiet
        newest.fault = None if is_quiet else self._known_fault(finished, measured)
        if self._judges_each or not (is_quiet or newest.fault):
            if not (is_quiet or finished.is_updated) and measured.parameter_norm is None:
                self._guard.run("parameter_norms", self._look_at_parameters, measured)
            verdict = self._judge(measured, self._evidence(finished, measured), self._guard)
            self.take_verdicts()
        elif newest.fault or measured.has_statistics:
            newest.state = "waiting"
            newest.stack = raw_stack(sys._getframe(2), limit=_STACK_FRAMES)
        self._fault = newest.fault or (None if finished.is_updated else verdict.lasting)
        self._fault_at = measured.step, measured.layout
        for call in self._hooks.judged.calls:
            call(finished, measured, verdict)
        return verdict

    @property
    def fault(self) -> LastingFault | None:
        """What was bad of the newest step, which only counted in open events; None: look at the next one."""
        return None if self._judges_each or self._acts_on_verdicts else self._fault

    def _known_fault(self, finished: FinishedStep, measured: MeasuredStep) -> LastingFault | None:
        """The fault of the step before, if this one is bad in the same way: else it is judged by itself."""
        fault, (step, layout) = self.fault, self._fault_at
        if fault is None or finished.is_updated or measured.step <= step or measured.layout is not layout:
            return None
        loss, norms = measured.loss.value, measured.parameter_norm
        is_same = (
            fault.has_bad_loss == (loss is not None and not math.isfinite(loss))
            and fault.has_bad_gradients != measured.gradients.is_finite
            and (norms is None or fault.has_bad_parameters != bool(np.isfinite(norms).all()))
        )
        return fault if is_same else None

    def forget_fault(self) -> None:
        """Its events are closed: the next bad step begins others. Any thread."""
        self._fault = None

    def enqueue(self, newest: QueuedStep) -> None:
        """Have a step judged that is not yet: the recorder's thread may do it from here on."""
        if newest.state == "late":
            newest.stack = raw_stack(sys._getframe(2), limit=_STACK_FRAMES)
        if newest.state != "judged":
            self.queue.add(newest)

    def settle(self) -> None:
        """Take the values of the newest step, where they are still on their way; waits for them."""
        self.queue.settle()

    def judge_all(self) -> None:
        """Have the detectors look at every step so far; waits for what is on its way."""
        self.queue.judge_all()

    def take_verdicts(self) -> None:
        """Act on what has been found, on whichever thread."""
        for verdict in self.queue.take_verdicts():
            self._schedule.suspect(verdict.suspicion)

    def take_anomaly(self) -> AnomalyError | None:
        """Return what `mode="raise"` has to raise, once."""
        anomaly, self._anomaly = self._anomaly, None
        return anomaly

    def follow_memory(self, step: int) -> bool:
        """Have memory watched; returns whether that is to be done at the next step too."""
        if self._leaks.wants or self._leaks.is_looking:
            self._guard.run("memory_leak", self._follow_memory, step)
        return self._leaks.is_looking

    def _follow_memory(self, step: int) -> None:
        """A look at all objects makes the step an unusual one, as a replay does."""
        looks = self._leaks.looks
        for incident in self._leaks.follow(step, sys._getframe()):
            self._incidents.report(incident.finding, step, time.time(), stack=incident.stack)
        if self._leaks.looks > looks:
            self._incidents.note_look()

    def note_memory(self, step: int, sample: MemorySample) -> None:
        """Judge a new sample of the machine's memory, on the recorder's thread."""
        self._recorder_guard.run("memory_leak", self._leaks.note, step, sample)

    @property
    def wants_memory(self) -> bool:
        """Whether memory is to be read, or something was found of it; from any thread."""
        return self._leaks.wants

    @property
    def memory_wait_ns(self) -> float:
        """How long until memory is to be followed though nobody asks `wants_memory`; infinite: not at all."""
        return self._leaks.wait_ns

    @property
    def is_looking_at_memory(self) -> bool:
        """Whether a series of looks at the heap goes on; from any thread."""
        return self._leaks.is_looking

    def judge_accounted(self, finished: FinishedStep, measured: MeasuredStep) -> None:
        """The time of a step is known: have the watchpoints judged that are judged before its update."""
        calls = self._hooks.accounted.calls
        if calls:
            evidence = None if finished.is_updated else lambda: self._evidence(finished, measured)
            for call in calls:
                call(measured, evidence)

    def judge_sample(self, measured: MeasuredStep) -> None:
        """Nothing is added to a finished step any more: judge what was sampled and logged."""
        if self._samples.wants(measured):
            found = self._guard.run("detectors of samples", self._samples.take, measured)
            self._schedule.suspect(None if found is None else found.suspicion)

    def evidence_of_exception(self, opened: OpenStep, failed: RootCapture | None) -> StepEvidence:
        """What is at hand of a step that ends in an exception; `failed` is of the forward that raised it."""
        from .step_evidence import evidence_of_exception

        return evidence_of_exception(opened, failed, model=self._model, black_box=self._incidents.black_box)

    def forget(self) -> None:
        """Drop what has not been judged."""
        self.queue.forget()
        self._incidents.black_box.forget()

    # -- on either thread, under the lock of `incidents`

    def _arrive(self, late: QueuedStep, guard: Guard) -> None:
        """Take the values of a step that were on their way."""
        late.state = "judged"
        if guard.run("late", self._take_values, late, guard) is None:
            late.measured.late = None
            self._timing.give_up()
        self._write(late.measured)

    def _take_values(self, late: QueuedStep, guard: Guard) -> bool:
        measured = late.measured
        measured.arrive()
        if not measured.is_quiet:
            self._judge(measured, LateEvidence(late.stack), guard)
            self._timing.arm(measured.step)
        elif measured.has_statistics:
            late.state = "waiting"
        return True

    def _judge(self, measured: MeasuredStep, evidence: StepEvidence | LateEvidence, guard: Guard) -> Verdict:
        """Have an unusual step judged, after those that wait."""
        verdict = self.queue.judge_at_once(build_observation(measured), measured.time, evidence, guard)
        if self._raises and verdict.critical is not None:
            # A later step of a running episode would ruin the weights just as the first one.
            self._anomaly = AnomalyError(verdict.critical)
        return verdict

    def _look_at_parameters(self, measured: MeasuredStep) -> None:
        """Parameters that are bad already are why the step is, and not what it computes of them."""
        parameters = self._model.measure_parameters()
        if not parameters.is_finite:
            measured.parameter_norm = parameters.norm

    def _evidence(self, finished: FinishedStep, measured: MeasuredStep) -> StepEvidence:
        # A healthy step is judged by its numbers alone.
        from .step_evidence import evidence_of_step

        return evidence_of_step(
            finished,
            measured,
            model=self._model,
            black_box=self._incidents.black_box,
            with_context=self._schedule.features.anomaly_context > 0,
        )
