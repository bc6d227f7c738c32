"""Takes each finished step to the detectors and to the recorder; the step tracker's second half.

Used on the training thread. A step whose values are all finite waits in the `StepQueue` for a few others; one
that is not is judged at once, before the update. Its frame goes into the recorder's ring when the step ends;
what is added later, until the next backward begins, follows it there and becomes one frame with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Final

from ..actions.recovery.step_recovery import StepRecovery
from ..actions.rules.rule_book import RuleBook
from ..attach.watched_model import WatchedModel
from ..delivery.recorder.recorder import Recorder
from ..errors import AnomalyError
from ..forensics.capture import RootCapture
from ..guard import Guard
from ..incidents.evidence import LateEvidence, StepEvidence
from ..incidents.incidents import IncidentReporter
from ..incidents.verdict import NOTHING_FOUND, Verdict
from ..measure.update_meter import UpdateRatios
from ..memory.leak_watch import LeakWatch
from ..settings.config import ProbeConfig
from ..step.clipping import clipping_scalars
from ..step.frames import MeasuredStep, build_observation, pack_sampled
from ..step.late_values import LateClipping, LateValues
from ..step.log_values import is_at_hand
from ..step.open_step import FinishedStep, LogValue, OpenStep
from ..step.step_meters import StepMeters
from ..threads.stacks import raw_stack
from ..wire import Frame
from .early_watch import EarlyWatch
from .sample_judge import SampleJudge
from .step_evidence import evidence_of_exception, evidence_of_step
from .step_measures import StepMeasures
from .step_queue import QueuedStep, StepQueue
from .verdict_timing import VerdictTiming

_STACK_FRAMES: Final = 64
_LATE_FRAME_S: Final = 0.5
"""A finished step waits at most this long for `run.log` once the next forward begins."""


class StepWriter:
    """Completes, judges and writes finished steps, in order.

    Attributes:
        last_step: number of the newest finished step; None before the first.
        anomaly: what `mode="raise"` has to raise, once the guard is left.
        queue: finished steps that the detectors have not seen.
        timing: whether the step under way may be judged after its update.
        recovery: what acts before the update of a bad step, where the user asked for it.
        rules: the user's watchpoints and rules.
    """

    def __init__(
        self,
        model: WatchedModel,
        measures: StepMeasures,
        meters: StepMeters,
        *,
        config: ProbeConfig,
        recorder: Recorder,
        incidents: IncidentReporter,
        guard: Guard,
        samples: SampleJudge,
        early: EarlyWatch,
    ) -> None:
        self._model, self._measures, self._meters = model, measures, meters
        self._samples, self._early = samples, early
        self.timing = VerdictTiming(config, model, measures)
        self.last_step: int | None = None
        self.anomaly: AnomalyError | None = None
        self.rules: RuleBook | None = None
        self.recovery: StepRecovery | None = None
        self._recorder, self._incidents, self._guard = recorder, incidents, guard
        self._leaks = LeakWatch.of_this_process()
        self._raises = config.mode == "raise"
        self._newest: QueuedStep | None = None
        """The step finished last, until it is complete."""
        self._late_logs: list[tuple[int, int, Mapping[str, LogValue]]] = []
        """Of written steps: number, layout, and what the user logged that is still on its way."""
        self.queue = StepQueue(incidents, guard, arrive=self._arrive)
        recorder.watches.append(self.queue)

    def begin_step(self, step: int) -> None:
        """A step begins: decide when it is to be judged."""
        self.timing.begin_step(step, self._needs_verdict)

    def _needs_verdict(self) -> bool:
        return self._acts_on_verdict or self._early.needs_gradients(self._model.layout)

    @property
    def acts_on_steps(self) -> bool:
        """Whether a rule, a recovery or a late verdict needs each step as it is made."""
        rules = self.rules
        has_rules = rules is not None and (rules.has_early or rules.has_late)
        return self._acts_on_verdict or has_rules or self.timing.is_late

    @property
    def _acts_on_verdict(self) -> bool:
        rules = self.rules
        return self._raises or self.recovery is not None or (rules is not None and rules.has_early)

    def finish(self, finished: FinishedStep) -> None:
        """Measure what else is due, have the step judged, and put its frame into the ring."""
        self._settle()
        measured = self._measured(finished)
        due = self._measures.due
        if (
            self._acts_on_verdict
            or not self.timing.is_late
            or finished.was_scaled
            or due.gradient_noise
            or due.gradient_cosine
        ):
            measured.arrive()
        if self._early.wants(measured):
            if self._early.needs_gradients(measured.layout):
                measured.arrive()
            self._early.note_step(finished, measured)
            self._samples.look_for_news()
        self._incidents.black_box.keep(measured.step, finished.opened.captures)
        self._guard.run("measures", self._measures.collect, measured, finished.opened)
        newest = QueuedStep(measured, (), "late" if measured.late is not None else "judged", time.monotonic())
        if newest.state == "judged":
            self._judge_or_wait(finished, newest)
        self.complete_newest()
        self._newest = newest
        self.last_step = measured.step
        if measured.modules is not None and (layout := self._model.note_modules(measured.modules.modules)):
            self._recorder.event(layout)
            measured.layout = self._model.layout
        if self._measures.due.memory and self._leaks.wants(self._recorder.memory):
            self._guard.run("memory_leak", self._follow_memory, measured)
        self._end(measured)
        is_late = newest.state == "late"
        if is_late:
            newest.stack = raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        if newest.state != "judged":
            # Last: the recorder's thread may judge it from here on.
            self.queue.add(newest)
        if is_late:
            return
        if self.rules is not None and self.rules.has_early:
            self._follow_watchpoints(finished, measured, self.rules)
        self._write(measured)
        if self.rules is not None and self.rules.wants_pause:
            # Who looks at the page meanwhile sees the step.
            self.judge_all()
            self.complete_newest()
            self.rules.hold()

    def _judge_or_wait(self, finished: FinishedStep, newest: QueuedStep) -> None:
        """Judge a step before its update, or have a quiet one wait for a few others."""
        measured, recovery, verdict = newest.measured, self.recovery, NOTHING_FOUND
        if self._raises or not measured.is_quiet or (recovery is not None and recovery.judges_explosions):
            if not (measured.is_quiet or finished.is_updated) and measured.parameter_norm is None:
                self._guard.run("parameter_norms", self._look_at_parameters, measured)
            verdict = self._judge(measured, self._evidence(finished, measured), self._guard)
            self._take_verdicts()
        elif measured.has_statistics:
            newest.state = "waiting"
            newest.stack = self.queue.newest_stack or raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        if recovery is not None:
            self._guard.run(
                "recovery",
                recovery.note,
                measured,
                verdict.kinds if recovery.judges_explosions else frozenset(),
                is_early=finished.is_early,
                is_updated=finished.is_updated,
            )

    def _settle(self) -> None:
        """Take in what the step before was waiting for, and what the detectors have found meanwhile."""
        newest = self._newest
        if newest is not None and newest.state == "late":
            self.queue.settle()
        if newest is not None and not (newest.is_open or newest.is_complete):
            self._complete(newest)
        if self._late_logs:
            self._write_late_logs()
        self._take_verdicts()

    def _take_verdicts(self) -> None:
        """Pass on what has been found, on whichever thread."""
        for verdict in self.queue.take_verdicts():
            self._measures.suspect(verdict.suspicion)
            for step in verdict.alarms:
                self._samples.note_alarm(step)

    def _arrive(self, late: QueuedStep, guard: Guard) -> None:
        """Take the values of a step that were on their way; on either thread, under the lock."""
        late.state = "judged"
        if guard.run("late", self._take_values, late, guard) is None:
            late.measured.late = None
            self.timing.give_up()
        self._write(late.measured)

    def _take_values(self, late: QueuedStep, guard: Guard) -> bool:
        measured = late.measured
        measured.arrive()
        if not measured.is_quiet:
            self._judge(measured, LateEvidence(late.stack), guard)
            self.timing.arm(measured.step)
        elif measured.has_statistics:
            late.state = "waiting"
        return True

    def _follow_watchpoints(self, finished: FinishedStep, measured: MeasuredStep, rules: RuleBook) -> None:
        """Judge what can be judged before the update."""
        evidence = None if finished.is_updated else lambda: self._evidence(finished, measured)
        self._guard.run("rules", rules.before_update, measured, evidence)

    def _look_at_parameters(self, measured: MeasuredStep) -> None:
        """Parameters that are bad already are why the step is, and not what it computes of them."""
        parameters = self._model.measure_parameters()
        if not parameters.is_finite:
            measured.parameter_norm = parameters.norm

    def _follow_memory(self, measured: MeasuredStep) -> None:
        """Have memory watched; a look at all objects makes the step an unusual one, as a replay does."""
        looks = self._leaks.looks
        for incident in self._leaks.follow(measured.step, self._recorder.memory, sys._getframe()):
            self._incidents.report(incident.finding, measured.step, measured.time, stack=incident.stack)
        if self._leaks.looks > looks:
            self._incidents.note_look()

    def pass_step(self, step: int) -> None:
        """Count a step of which nothing is looked at; only commands are followed."""
        self.last_step = step
        self._apply_commands(step)

    def add_ratios(self, ratios: UpdateRatios) -> None:
        """Add update-to-weight ratios to the frame of their step, or write them in one of their own."""
        sampled = {"update_ratio": ratios.ratio}
        scalars = {} if ratios.total is None else {"update_ratio": ratios.total}
        newest = self._newest
        if newest is not None and newest.measured.step == ratios.step:
            with self._incidents.lock:
                newest.measured.sampled |= sampled
                newest.measured.scalars |= scalars
                if newest.state == "late":
                    return
        self._recorder.frame(
            Frame(
                step=ratios.step,
                time=time.time(),
                layout=self._model.layout.record.layout,
                scalars=scalars,
                parameter_columns=pack_sampled(sampled),
            ),
            is_addition=newest is not None and newest.measured.step == ratios.step,
        )

    def judge_all(self) -> None:
        """Have the detectors look at every step so far; waits for what is on its way."""
        self.queue.judge_all()

    def log(self, values: dict[str, LogValue]) -> None:
        """Add values to the newest step; too late for its frame, they become one of their own."""
        newest, step = self._newest, self.last_step
        if newest is not None and newest.is_open:
            step = newest.measured.step
            newest.measured.logged |= values
            if newest.state == "late":
                with self._incidents.lock:
                    if newest.state == "late":
                        return
        if step is not None:
            self.add(step, values)

    def add(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Write more of a step whose record is in the ring, or is about to be."""
        self._add(step, self._model.layout.record.layout, values)

    def _add(self, step: int, layout: int, values: Mapping[str, LogValue]) -> None:
        """Write more of a step that is written already: what is at hand now, the rest later."""
        here = {name: read() for name, read in values.items() if is_at_hand(read)}
        if here:
            frame = Frame(step=step, time=time.time(), layout=layout, scalars=here)
            self._recorder.frame(frame, is_addition=True)
        if len(here) < len(values):
            left = {name: read for name, read in values.items() if name not in here}
            self._late_logs.append((step, layout, left))

    def _write_late_logs(self) -> None:
        late, self._late_logs = self._late_logs, []
        for step, layout, values in late:
            self._add(step, layout, values)

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
        measured, rules = newest.measured, self.rules
        had_statistics = measured.has_statistics
        if rules is not None and rules.has_late:
            self._guard.run("rules", rules.after_step, measured)
        if measured.has_statistics and not had_statistics:
            self._recorder.frame(measured.build_columns(), is_addition=True)
        if self._samples.wants(measured):
            found = self._guard.run("detectors of samples", self._samples.take, measured)
            self._measures.suspect(None if found is None else found.suspicion)
        if rules is not None and rules.wants_pause:
            rules.hold()

    def _write(self, measured: MeasuredStep) -> None:
        """Put the frame of a step into the ring."""
        late = {name: read for name, read in measured.logged.items() if not is_at_hand(read)}
        self._recorder.frame(measured)
        if late:
            self._late_logs.append((measured.step, measured.layout.record.layout, late))

    def close(self) -> None:
        """Have everything judged, completed and written; waits for what is on its way."""
        self._settle()
        self.judge_all()
        self.complete_newest()
        self._settle()
        for step, layout, values in self._late_logs:
            scalars = {name: read() for name, read in values.items()}
            self._recorder.frame(Frame(step=step, time=time.time(), layout=layout, scalars=scalars))
        self._late_logs = []

    def forget(self) -> None:
        """Drop what has not been written."""
        self._newest, self._late_logs = None, []
        self.queue.forget()
        self._incidents.black_box.forget()

    def _measured(self, finished: FinishedStep) -> MeasuredStep:
        due, opened = self._measures.due, finished.opened
        scalars = self._clip_scalars(opened, finished.late) if due.clipping else {}
        if due.memory:
            scalars |= self._meters.read_memory()
        if opened.before_backward_ns:
            scalars["before_backward_s"] = opened.before_backward_ns / 1e9
        if opened.own_backward_ns:
            scalars["own_backward_s"] = opened.own_backward_ns / 1e9
        return MeasuredStep(
            step=finished.step,
            time=time.time(),
            layout=self._model.layout,
            stage=finished.stage,
            gradients=finished.gradients,
            has_statistics=due.gradients > 0,
            total_norm=finished.gradients.total_norm,
            parameter_norm=None,
            loss=finished.loss,
            samples=opened.samples,
            scalars=scalars,
            logged=opened.logged,
            late=finished.late,
        )

    def _clip_scalars(self, opened: OpenStep, late: LateValues | None) -> dict[str, float]:
        """What clipping did, measured anew where torch's own numbers do not tell."""
        clipping = opened.clipping
        if isinstance(clipping, LateClipping):
            if late is not None:
                late.clipping = clipping
                if not clipping.says_what_is_left:
                    clipping.after = self._model.start_measuring_gradients()
            return {}
        if clipping is None:
            return {}
        after = clipping.after
        if after is None:
            after = self._model.measure_gradients().total_norm
        return {} if after is None else clipping_scalars(clipping.before, after)

    def evidence_of_exception(self, opened: OpenStep, failed: RootCapture | None) -> StepEvidence:
        """What is at hand of a step that ends in an exception; `failed` is of the forward that raised it."""
        self._settle()
        return evidence_of_exception(opened, failed, model=self._model, black_box=self._incidents.black_box)

    def _evidence(self, finished: FinishedStep, measured: MeasuredStep) -> StepEvidence:
        return evidence_of_step(
            finished,
            measured,
            model=self._model,
            black_box=self._incidents.black_box,
            with_context=self._measures.due.anomaly_context > 0,
        )

    def _end(self, measured: MeasuredStep) -> None:
        """Account for the time, and follow commands, between two steps."""
        measured.taken = taken = self._meters.read_time()
        if taken is not None:
            self._guard.run("measures", self._measures.end_step, measured, taken)
        self._apply_commands(measured.step)

    def _apply_commands(self, step: int) -> None:
        if self._measures.mailbox.waiting:
            self._measures.apply_commands(step)

    def _judge(self, measured: MeasuredStep, evidence: StepEvidence | LateEvidence, guard: Guard) -> Verdict:
        """Have an unusual step judged, after those that wait."""
        verdict = self.queue.judge_at_once(build_observation(measured), measured.time, evidence, guard)
        if self._raises and verdict.critical is not None:
            # A later step of a running episode would ruin the weights just as the first one.
            self.anomaly = AnomalyError(verdict.critical)
        return verdict
