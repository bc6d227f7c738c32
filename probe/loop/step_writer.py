"""Takes each finished step to the detectors and to the recorder; the step tracker's second half.

Used on the training thread. A step whose values are all finite waits for a few others before the detectors
see it: judged in a row they cost a tenth. A step that is not is judged at once, before the update.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from ..actions.recovery.step_recovery import StepRecovery
from ..actions.rules.rule_book import RuleBook
from ..attach.observation.context import describe_outputs
from ..attach.watched_model import WatchedModel
from ..delivery.recorder.recorder import Recorder
from ..errors import AnomalyError
from ..forensics.capture import RootCapture
from ..guard import Guard
from ..incidents.incidents import IncidentReporter, LateEvidence, StepEvidence
from ..measure.update_meter import UpdateRatios
from ..memory.leak_watch import LeakWatch
from ..settings.config import ProbeConfig
from ..step.clipping import clipping_scalars
from ..step.frames import MeasuredStep, build_batch, build_observation, pack_sampled
from ..step.late_values import LateClipping, LateValues
from ..step.open_step import FinishedStep, LogValue, OpenStep, why_not_replayable
from ..step.step_meters import StepMeters
from ..threads.stacks import RawFrame, raw_stack
from ..wire import Frame
from .early_watch import EarlyWatch
from .sample_judge import SampleJudge
from .step_measures import StepMeasures
from .verdict_timing import VerdictTiming

_WAITING_STEPS: Final = 32
_WAITING_NS: Final = 500_000_000
"""Quiet steps are judged once there are this many of them, or the oldest is this old."""
_STACK_FRAMES: Final = 64
_LATE_FRAME_NS: Final = 500_000_000
"""A finished frame waits at most this long for `run.log` once the next forward begins."""


class StepWriter:
    """Completes, judges and writes finished steps, in order.

    Attributes:
        last_step: number of the newest finished step; None before the first.
        anomaly: what `mode="raise"` has to raise, once the guard is left.
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
        self._late: tuple[MeasuredStep, list[RawFrame]] | None = None
        """The newest step, while its values are on their way; with the stack of the training loop."""
        self._held: MeasuredStep | None = None
        """The same step, once nothing can be added to its frame any more."""
        self.last_step: int | None = None
        self.anomaly: AnomalyError | None = None
        self.rules: RuleBook | None = None
        self.recovery: StepRecovery | None = None
        self._recorder, self._incidents, self._guard = recorder, incidents, guard
        self._leaks = LeakWatch.of_this_process()
        self._raises = config.mode == "raise"
        self._pending: MeasuredStep | None = None
        self._pending_since_ns = 0
        self._waiting: list[MeasuredStep] = []
        self._waiting_since_ns = 0
        self._waiting_stack: list[RawFrame] = []

    def begin_step(self, step: int) -> None:
        """A step begins: decide when it is to be judged."""
        self.timing.begin_step(step, self._needs_verdict)

    def _needs_verdict(self) -> bool:
        return self._acts_on_verdict or self._early.needs_gradients(self._model.layout)

    @property
    def _acts_on_verdict(self) -> bool:
        rules = self.rules
        return self._raises or self.recovery is not None or (rules is not None and rules.has_early)

    def finish(self, finished: FinishedStep) -> None:
        """Measure what else is due, have the step judged, and keep its frame for `run.log`."""
        self._judge_late()
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
        if measured.late is not None:
            self._late = measured, raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        else:
            self._judge_or_wait(finished, measured)
        self.write_pending()
        self._pending, self._pending_since_ns = measured, time.perf_counter_ns()
        self.last_step = measured.step
        if measured.modules is not None and (layout := self._model.note_modules(measured.modules.modules)):
            self._recorder.event(layout)
            measured.layout = self._model.layout
        if self._measures.due.memory and self._leaks.wants(self._recorder.memory):
            self._guard.run("memory_leak", self._follow_memory, measured)
        self._end(measured)
        if self.rules is not None and self.rules.has_early and measured.late is None:
            self._follow_watchpoints(finished, measured, self.rules)

    def _judge_or_wait(self, finished: FinishedStep, measured: MeasuredStep) -> None:
        """Judge a step before its update, or have a quiet one wait for a few others."""
        recovery = self.recovery
        if self._raises or not measured.is_quiet or (recovery is not None and recovery.judges_explosions):
            if not (measured.is_quiet or finished.is_updated) and measured.parameter_norm is None:
                self._guard.run("parameter_norms", self._look_at_parameters, measured)
            self.judge_waiting()
            self._incidents.kinds = frozenset()
            self._guard.run("detectors", self._judge, measured, self._evidence(finished, measured))
        elif measured.has_statistics:
            self._wait(measured)
        if recovery is not None:
            kinds = self._incidents.kinds if recovery.judges_explosions else frozenset()
            self._guard.run(
                "recovery",
                recovery.note,
                measured,
                kinds,
                is_early=finished.is_early,
                is_updated=finished.is_updated,
            )

    def _judge_late(self) -> None:
        """Judge the step before, whose values have arrived by now, and write its frame if that is due."""
        if self._late is None:
            return
        (measured, stack), self._late = self._late, None
        if self._guard.run("late", self._take_late, measured, stack) is None:
            measured.late = None
            self.timing.give_up()
        held, self._held = self._held, None
        if held is not None:
            self._write(held)

    def _take_late(self, measured: MeasuredStep, stack: list[RawFrame]) -> bool:
        measured.arrive()
        if measured.is_quiet:
            if measured.has_statistics:
                self._wait(measured)
            return True
        self.judge_waiting()
        self._guard.run("detectors", self._judge, measured, LateEvidence(stack))
        self.timing.arm(measured.step)
        return True

    def _follow_watchpoints(self, finished: FinishedStep, measured: MeasuredStep, rules: RuleBook) -> None:
        """Judge what can be judged before the update, and wait where a watchpoint asks for it."""
        evidence = None if finished.is_updated else lambda: self._evidence(finished, measured)
        self._guard.run("rules", rules.before_update, measured, evidence)
        if rules.wants_pause:
            # Who looks at the page meanwhile sees the step.
            self.judge_all()
            self.write_pending()
            rules.hold()

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
            self._incidents.looks += 1

    def pass_step(self, step: int) -> None:
        """Count a step of which nothing is looked at; only commands are followed."""
        self.last_step = step
        self._apply_commands(step)

    def add_ratios(self, ratios: UpdateRatios) -> None:
        """Add update-to-weight ratios to the frame of their step, or write them in one of their own."""
        sampled = {"update_ratio": ratios.ratio}
        scalars = {} if ratios.total is None else {"update_ratio": ratios.total}
        pending = self._pending
        if pending is not None and pending.step == ratios.step:
            pending.sampled |= sampled
            pending.scalars |= scalars
        else:
            number = self._model.layout.record.layout
            columns = pack_sampled(sampled)
            self._recorder.frame(
                Frame(
                    step=ratios.step,
                    time=time.time(),
                    layout=number,
                    scalars=scalars,
                    parameter_columns=columns,
                )
            )

    def judge_all(self) -> None:
        """Have the detectors look at every step so far; waits for what is on its way."""
        self._judge_late()
        self.judge_waiting()

    def judge_waiting(self) -> None:
        """Have the detectors look at what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._guard.run("detectors", self._judge_batch, waiting)

    def log(self, values: dict[str, LogValue]) -> None:
        """Add values to the newest frame; too late for it, they get one of their own."""
        pending = self._pending
        if pending is not None:
            pending.logged |= values
        elif self.last_step is not None:
            scalars = {name: read() for name, read in values.items()}
            number = self._model.layout.record.layout
            self._recorder.frame(Frame(step=self.last_step, time=time.time(), layout=number, scalars=scalars))

    def write_late(self) -> None:
        """Write a frame for which `run.log` has taken too long."""
        if self._pending is not None and time.perf_counter_ns() - self._pending_since_ns > _LATE_FRAME_NS:
            self.write_pending()

    def write_pending(self) -> None:
        """Hand the newest frame to the recorder: nothing can be added any more."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if pending.late is None:
            self._write(pending)
        else:
            self._held = pending

    def _write(self, measured: MeasuredStep) -> None:
        rules = self.rules
        if rules is not None and rules.has_late:
            self._guard.run("rules", rules.after_step, measured)
        self._recorder.frame(measured)
        if self._samples.wants(measured):
            self._guard.run("detectors of samples", self._samples.take, measured)
        if rules is not None and rules.wants_pause:
            rules.hold()

    def forget(self) -> None:
        """Drop what has not been written."""
        self._pending, self._waiting, self._late, self._held = None, [], None, None
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
        self._judge_late()
        captures = [capture for capture in opened.captures if not capture.is_abandoned]
        return StepEvidence(
            root=self._model.root,
            captures=captures if failed is None else [*captures, failed],
            parameters=self._model.parameters,
            loss=opened.loss,
            stage="local",
            was_scaled=False,
            micro_step=None,
            no_replay_reason=self._model.no_replay_reason,
            frames=lambda: [step.build() for step in (self._pending,) if step is not None],
            past_batches=self._incidents.black_box.before(sys.maxsize),
        )

    def _evidence(self, finished: FinishedStep, measured: MeasuredStep) -> StepEvidence:
        opened, modules = finished.opened, measured.modules
        newest = [step for step in (self._pending, measured) if step is not None]
        context = describe_outputs(modules) if modules and self._measures.due.anomaly_context else ()
        return StepEvidence(
            root=self._model.root,
            captures=[capture for capture in opened.captures if not capture.is_abandoned],
            parameters=self._model.parameters,
            loss=opened.loss,
            stage=finished.stage,
            was_scaled=finished.was_scaled,
            micro_step=opened.backwards - 1 if opened.backwards > 1 else None,
            no_replay_reason=why_not_replayable(opened) or self._model.no_replay_reason,
            context=context,
            frames=lambda: [step.build() for step in newest],
            past_batches=self._incidents.black_box.before(measured.step),
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

    def _wait(self, measured: MeasuredStep) -> None:
        now_ns = time.perf_counter_ns()
        waiting = self._waiting
        if waiting and waiting[0].layout is not measured.layout:
            self.judge_waiting()
            waiting = self._waiting
        if not waiting:
            self._waiting_since_ns = now_ns
            self._waiting_stack = raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        waiting.append(measured)
        if len(waiting) >= _WAITING_STEPS or now_ns - self._waiting_since_ns > _WAITING_NS:
            self.judge_waiting()

    def _judge(self, measured: MeasuredStep, evidence: StepEvidence | LateEvidence) -> None:
        self._incidents.judge(build_observation(measured), measured.time, evidence)
        if self._raises and self._incidents.critical is not None:
            # A later step of a running episode would ruin the weights just as the first one.
            self.anomaly = AnomalyError(self._incidents.critical)

    def _judge_batch(self, waiting: list[MeasuredStep]) -> None:
        self._incidents.judge_quiet(
            build_batch(waiting), [measured.time for measured in waiting], self._waiting_stack
        )
