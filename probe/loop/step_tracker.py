"""Follows one model's training: the callbacks of the hooks and the session's calls, each in the guard.

The `Listener` of `hooks.py`; one per session, used on the training thread. `training_loop.py` knows what
belongs to a step, `step_measures.py` what else is measured, `step_writer.py` has it judged and written. A
step's frame is made before the update (or at the first sign of a non-finite value, if that is earlier) and
written when the next backward begins, because until then `run.log` may add to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..actions.recovery.enforcement import Enforcement
from ..actions.recovery.step_recovery import StepRecovery
from ..actions.rules.rule_book import RuleBook
from ..attach.hooks import attach
from ..attach.layout import ModelLayout, unwrap
from ..attach.watched_model import WatchedModel
from ..compat.host_copy import is_capturing
from ..delivery.recorder.recorder import Recorder
from ..detectors.overfitting import LOGGED_NAMES
from ..detectors.sampled_bank import SampledDetectorBank
from ..errors import PolicyError
from ..forensics.capture import RootCapture
from ..guard import Guard
from ..incidents.failure_texts import is_out_of_memory
from ..incidents.incidents import IncidentReporter, StepEvidence
from ..settings.config import ProbeConfig
from ..settings.levels import Settings
from ..step.clipping import clip_open_step, note_clipping
from ..step.open_step import LogValue, OpenStep
from ..step.step_meters import StepMeters
from ..threads.stacks import raw_stack
from ..threads.watchdog import LoopMark, pulse
from ..wire import SCALARS
from .attention import Attention
from .control import Command
from .early_watch import EarlyWatch
from .epochs import EpochWatch
from .evaluation import SERIES, EvaluationLoss
from .fast_path import FastPath
from .followed_records import FollowedRecords
from .followed_training import FollowedTraining
from .sample_judge import SampleJudge
from .step_measures import StepMeasures
from .step_writer import StepWriter
from .training_loop import TrainingLoop

_STACK_FRAMES: Final = 256


class StepTracker:
    """Turns the callbacks of one training loop into frames and events."""

    def __init__(
        self,
        root: nn.Module,
        layout: ModelLayout,
        optimizer: Optimizer | None,
        *,
        config: ProbeConfig,
        recorder: Recorder,
        incidents: IncidentReporter,
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._model = WatchedModel(unwrap(root), layout, optimizer)
        bank = SampledDetectorBank(config.sampled_thresholds)
        self._measures = StepMeasures(self._model, config.settings, guard=guard, incidents=incidents)
        self._early = EarlyWatch(
            self._model,
            bank,
            lambda: self._measures.optimizers,
            guard=guard,
            excuse_zeros=incidents.excuse_zeros,
        )
        meters = StepMeters(guard, recorder)
        self._samples = SampleJudge(bank, incidents)
        self._writer = StepWriter(
            self._model,
            self._measures,
            meters,
            config=config,
            recorder=recorder,
            incidents=incidents,
            guard=guard,
            samples=self._samples,
            early=self._early,
        )
        self.rules = self._writer.rules = RuleBook(
            self._model, meters, config=config, recorder=recorder, incidents=incidents, guard=guard
        )
        """The user's watchpoints and rules."""
        self._loop = TrainingLoop(self._model, self._measures, self._writer, config=config, recorder=recorder)
        self._evaluation = EvaluationLoss(guard)
        self.mark = LoopMark()
        """Where the training loop is, for who watches over it."""
        self._attention = Attention(self._measures)
        self._root_is_open = False
        self._failed: tuple[BaseException, RootCapture] | None = None
        """What the newest forward raised, if it did; until the next one begins."""
        self._recovery = self._writer.recovery = StepRecovery.of(
            config,
            self._model,
            incidents=incidents,
            guard=guard,
            optimizers=lambda: self._measures.optimizers,
        )
        self._policies = Enforcement.of(config, layout.record.model, incidents=incidents, guard=guard)
        self._attachment = self._loop.attachment = self._attention.attachment = attach(self, [root])
        if self._recovery is not None:
            self._attachment.tell_before_closures(self._recovery.before_closure)
        self._records = FollowedRecords(
            self._writer.queue,
            self._samples,
            recorder=recorder,
            incidents=incidents,
            guard=guard,
            mark=self.mark,
            ask_for_a_look=lambda: self.fast.ask_for_a_look(),
            interlude_ns=lambda: self.fast.interlude_ns,
        )
        recorder.watches.append(self._records)
        recorder.call_before_taking(lambda: self._records.take(is_recorders_thread=True))
        self.fast = FastPath(
            FollowedTraining(
                self._model,
                self._measures,
                meters,
                self._loop,
                self._writer,
                recorder=recorder,
                guard=guard,
                black_box=incidents.black_box,
                records=self._records,
                next_step=lambda: self.fast.next_step,
                wants_every_step=self._wants_every_step,
                forget_forward=self._forget_forward,
                input_limit_bytes=config.black_box_mib * 2**20 // max(config.black_box_steps, 1),
                output_limit_bytes=config.capture_limit_bytes,
            ),
            guard,
            size_cap_bytes=config.capture_limit_bytes,
        )
        self.epochs = EpochWatch(
            self._measures,
            meters,
            self._attention,
            last_step=lambda: self._writer.last_step,
            log=self.log,
            guard=guard,
        )

    # -- Listener

    def owns(self, optimizer: Optimizer) -> bool:
        """Say yes to any that updates a watched parameter, or what the one given to `watch` updates.

        So a wrapper of that one counts too, and the one that a script makes anew after unfreezing layers.
        """
        return bool(self._guard.run("optimizers", self._model.is_updated_by, optimizer))

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the forward; what a replay needs is captured around it when it is a training forward."""
        pulse.beats += 1
        self.fast.leave()
        if self._root_is_open:
            return call(root, *args, **kwargs)
        self._attention.note_call(root)
        if self._attention.is_elsewhere:
            return call(root, *args, **kwargs)
        policies = self._policies
        if policies is not None:
            args, kwargs = policies.check_inputs(root, args, kwargs, self.next_step)
        if not root.training:
            self._evaluation.begin(with_gradients=True)
        elif self._evaluation.is_open:
            self._end_evaluation()
        self._failed = None
        capture = self._guard.run("capture", self._loop.begin_forward, root, args, kwargs)
        observed = self._measures.observed
        if observed:
            self._guard.run("measures", self._measures.begin_forward, root, args, kwargs)
        elif self._measures.due.parameter_norms:
            self._guard.run("inputs", self._measures.glance_at_inputs, root, args, kwargs)
        is_followed = self._early.wants_calls
        if is_followed:
            self._early.begin_call(root, args, kwargs)
        self._root_is_open = True
        try:
            output = call(root, *args, **kwargs)
        except BaseException as error:
            if is_followed:
                self._early.end_call(raised=True)
            if observed:
                self._guard.run("measures", self._measures.end_forward, None, raised=True)
            if capture is not None:
                self._guard.run("capture", self._loop.open.forget, capture)
                # Who goes on after a lack of memory needs what the exception holds to be gone.
                self._failed = None if is_out_of_memory(error) else (error, capture)
            raise
        finally:
            self._root_is_open = False
        if observed:
            self._guard.run("measures", self._measures.end_forward, output)
        if is_followed:
            self._early.end_call(output)
        if capture is not None:
            self._guard.run("capture", capture.finish, output)
            self._guard.run("fast_path", self.fast.note_output, root, capture)
        return output if policies is None else self._checked_output(policies, output, capture)

    def _checked_output(self, policies: Enforcement, output: Any, capture: RootCapture | None) -> Any:
        """What the script gets of what a forward returned; raises where a policy says so."""
        try:
            return policies.check_output(output, self.next_step)
        except PolicyError:
            if capture is not None:
                self._guard.run("capture", self._loop.open.forget, capture)
            raise

    def before_evaluation(self) -> None:
        """Listen to the losses that follow; a checkpoint's forward has no gradients either."""
        self.fast.leave()
        if not self._root_is_open and not self._attention.is_elsewhere:
            self._evaluation.begin(with_gradients=False)

    def before_backward(self, tensors: Any, grad_tensors: Any) -> None:
        """Write the previous step's frame, note the loss."""
        pulse.beats += 1
        self.fast.leave()
        if self._attention.is_elsewhere:
            return
        if self._evaluation.is_open:
            self._evaluation.note_backward()
        early = self._early
        if early.is_on:
            early.before_backward()
        if self._loop.is_foreign_backward():
            return
        if self._loop.is_untrained and self._guard.run("step", self._loop.passes_by, tensors):
            return
        self._guard.run("fast_path", self.fast.note_loss, tensors, grad_tensors)
        if early.is_on:
            early.look_at_loss(tensors, {*self._loop.open.captures.values(), self._loop.open.samples})
        self._guard.run("step", self._loop.begin_backward, tensors, grad_tensors)
        if self._recovery is not None:
            self._recovery.begin_backward(is_judged=self._loop.finished_early)

    def after_backward(self, tensors: Any) -> None:
        """Count the micro-step; a non-finite loss is judged at once, for the script may skip the update."""
        pulse.beats += 1
        self.fast.leave()
        if self._attention.is_elsewhere:
            return
        early = self._early
        if early.is_on:
            early.after_any_backward()
        if self._loop.backward is None:
            return
        pulse.owner = self.mark
        if self.mark.wanted:
            self.mark.take(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))
        if early.is_on:
            early.after_backward()
        self._guard.run("step", self._loop.end_backward, tensors)
        if self._writer.anomaly is not None:
            self._raise_anomaly()

    def after_scale(self, loss: Any, scaled: Any) -> None:
        """Remember the loss that a GradScaler scaled."""
        self.fast.leave()
        self._guard.run("loss", self._loop.losses.note_scaling, loss, scaled)

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """Finish a step whose update a GradScaler skipped: no optimizer hook tells of it."""
        self.fast.leave()
        self._guard.run("measures", self._measures.note_scaler, scaler)
        if self._loop.open.backwards or self._loop.finished_early:
            self._guard.run("step", self._loop.finish_skipped, optimizer)
            self._raise_anomaly()

    def before_clip(self) -> None:
        """Look before clipping spreads one bad value over all gradients, or hides it."""
        self.fast.leave()
        if not is_capturing():
            self._guard.run("step", self._loop.look_before_clip)
            self._raise_anomaly()

    def after_clip(self, total_norm: Any, max_norm: Any) -> None:
        """Note what clipping left of the gradients."""
        if not is_capturing():
            self._guard.run("step", note_clipping, self._loop.open, total_norm, max_norm)

    def before_step(self, optimizer: Optimizer) -> None:
        """Finish the step: gradients are final, parameters not yet updated."""
        pulse.beats += 1
        self.fast.leave()
        if is_capturing():
            return
        if self._measures.is_off:
            self._guard.run("step", self._loop.pass_step, optimizer)
            return
        self._guard.run("step", self._loop.finish_at_optimizer, optimizer)
        self._raise_anomaly()
        if self._recovery is not None:
            self._recovery.before_update(optimizer)
        if self._measures.due.update_ratios:
            self._guard.run("measures", self._measures.before_update, optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Look at what the update did, and let go of the step's inputs."""
        pulse.beats += 1
        if self._measures.is_off or self._attachment.is_paused:
            self._guard.run("step", self._rest_or_resume, optimizer)
            return
        if self._recovery is not None:
            self._recovery.after_update()
        self._loop.open.captures.clear()
        if self._early.is_on:
            self._early.after_step(optimizer, self._writer.last_step)
        if self._measures.due.update_ratios:
            self._guard.run("measures", self._loop.look_after_update, optimizer)
        newest, self._loop.newest = self._loop.newest, None
        self.fast.consider(optimizer, newest)

    def _rest_or_resume(self, optimizer: Optimizer) -> None:
        """At level off nothing is left but a count of the steps; a command has everything put back."""
        if not self._measures.is_off:
            self._attachment.resume()
            return
        self._attachment.pause()
        if self._attachment.owners == 1:
            self.fast.count(optimizer, self.next_step)

    def _wants_every_step(self) -> bool:
        """Whether somebody has to be told of every step as it is made: then C cannot follow them."""
        writer = self._writer
        return (
            writer.acts_on_steps
            or self._policies is not None
            or self._early.is_on
            or self._evaluation.is_open
            or not self._model.tells_of_updates
            or self._attention.is_elsewhere
        )

    def _forget_forward(self, capture: RootCapture, error: BaseException) -> None:
        """A forward that C has followed has raised."""
        self._loop.open.forget(capture)
        self._failed = None if is_out_of_memory(error) else (error, capture)

    # -- for the session

    def log(self, values: dict[str, LogValue]) -> None:
        """Give values to the most recent backward; too late for its frame, they get one of their own."""
        followed = self.fast.step_of_newest_backward
        if followed is not None and LOGGED_NAMES.isdisjoint(values):
            self._writer.add(followed, values)
            return
        self.fast.leave()
        if not LOGGED_NAMES.isdisjoint(values):
            self._evaluation.switch_off()
        if self._loop.open.backwards:
            self._loop.open.logged |= values
        else:
            self._writer.log(values)

    def post(self, command: Command) -> bool:
        """Leave a command to be followed at the next step; False when too many are waiting. Any thread."""
        self.fast.ask_for_a_look()
        return self._measures.mailbox.post(command)

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip all gradients to a global L2 norm, with the norm that the step is measured by anyway.

        Raises:
            AnomalyError: in `mode="raise"`, as before torch's clip functions.
        """
        clipped = self.fast.clip(self._model.layout.parameters, max_norm)
        if clipped is not None:
            return clipped
        self._loop.must_know_now()
        self.before_clip()
        parameters, norm = self._model.layout.parameters, None
        if self._loop.finished_early:
            # Not finite: clipping would spread it.
            return torch.tensor(self._model.measure_gradients().total_norm or 0.0)
        if not self._model.is_sharded:
            norm = clip_open_step(self._loop.open, parameters, max_norm)
        # Nothing measured: no backward was seen, or parts of other ranks count too.
        return nn.utils.clip_grad_norm_(parameters, max_norm) if norm is None else norm

    def judge_waiting(self) -> None:
        """Have the detectors look at every step so far."""
        self._guard.run("step", self._records.take)
        self._guard.run("step", self._writer.judge_all)

    @property
    def settings(self) -> Settings:
        """What is measured how often, as it was asked for last; from any thread."""
        return self._measures.settings

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were seen to update the watched model."""
        return self._measures.optimizers

    @property
    def open_samples(self) -> int | None:
        """Samples of the step under way; None where they are not known."""
        return self._loop.open.samples or None

    @property
    def last_step(self) -> int | None:
        """Number of the newest finished step; None before the first."""
        following = self.fast.next_step
        return self._writer.last_step if following is None else following - 1

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the model is trained on the thread that asks; also while it was never called."""
        return self._attention.is_of_this_thread

    @property
    def trains_here(self) -> bool:
        """Whether the model is trained on the thread that asks, as far as it has been trained."""
        return self._attention.trains_here

    @property
    def next_step(self) -> int:
        """Number of the step that is under way, or about to begin."""
        return 0 if self.last_step is None else self.last_step + 1

    def evidence_of(self, error: BaseException) -> StepEvidence | None:
        """What is at hand of the step that an exception ended; None where it had no forward."""
        failed, self._failed = self._failed, None
        own = None if failed is None or failed[0] is not error else failed[1]
        if is_out_of_memory(error) or not (own or self._loop.open.captures):
            return None
        return self._writer.evidence_of_exception(self._loop.open, own)

    def stop(self) -> None:
        """Remove every hook; what is pending is kept for `close`. Idempotent."""
        self.fast.stop()
        self._unhook()
        self._end_evaluation()

    def detach(self) -> None:
        """Remove every hook and forget what is pending; idempotent."""
        self.fast.abandon()
        self._unhook()
        self._evaluation.abandon()
        self._failed = None
        self._writer.forget()
        self._measures.stop()
        self._loop.open = OpenStep()

    def close(self) -> None:
        """Remove every hook and write what is pending; idempotent."""
        self.stop()
        self._failed = None
        if "epoch" in (left := self._loop.open.logged):
            # It ended amid an accumulation that no update came of any more.
            self._guard.run("step", self._writer.log, {name: left[name] for name in left if name in SCALARS})
        self._guard.run("step", self._writer.close)
        if self._policies is not None:
            self._policies.close(self.next_step)
        self._guard.run("measures", self._measures.stop)
        self._loop.open = OpenStep()

    def _unhook(self) -> None:
        self._attachment.detach()
        self.epochs.stop()
        if self._recovery is not None:
            self._recovery.stop()

    def _end_evaluation(self) -> None:
        """Give the newest step the loss of the evaluation that is over, where one was seen."""
        mean = self._evaluation.end()
        if mean is not None:
            self._guard.run(SERIES, self.log, {SERIES: mean})

    def _raise_anomaly(self) -> None:
        """Outside the guard: the one exception that is meant to reach the training loop."""
        if self._writer.anomaly is not None:
            anomaly, self._writer.anomaly = self._writer.anomaly, None
            raise anomaly
