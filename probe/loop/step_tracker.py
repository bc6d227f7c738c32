"""Follows one model's training: the callbacks of the hooks and the session's calls, each in the guard.

The `Listener` of an `Attachment`; one per session, used on the training thread. `training_loop.py` knows what
belongs to a step, `step_pipeline.py` has it measured, judged and written, and what else wants to be called
at a point of a step is in its hook.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..compat.host_copy import is_capturing
from ..errors import PolicyError
from ..forensics.capture import RootCapture
from ..guard import Guard
from ..incidents.evidence import StepEvidence
from ..incidents.failure_texts import is_out_of_memory
from ..incidents.unseen_gradients import report_unseen_gradients
from ..settings.levels import Settings
from ..step.clipping import clip_open_step, note_clipping
from ..step.open_step import LogValue
from ..threads.stacks import raw_stack
from ..threads.watchdog import pulse
from ..wire import SCALARS
from .control import Command
from .failed_forward import Share
from .loop_shape import site_of_call
from .tracker_parts import TrackerParts

_STACK_FRAMES: Final = 256
_MOST_TRANSFORMS: Final = 20
"""Gradients taken by `torch.func` and no step, after which it is told."""
_SITE_FRAMES: Final = 3
"""Of the code that calls `backward`: torch's own and two of the script."""


class StepTracker:
    """Turns the callbacks of one training loop into frames and events.

    Attributes:
        rules: the user's watchpoints and rules.
        profiles: takes requests for them.
        mark: where the training loop is, for who watches over it.
        epochs: counts them.
        fast: has C follow the steps.
    """

    def __init__(self, parts: TrackerParts, guard: Guard) -> None:
        self._guard = guard
        self._model, self._schedule, self._measures = parts.model, parts.schedule, parts.measures
        self._timing, self._pipeline, self._loop = parts.timing, parts.pipeline, parts.loop
        self._hooks, self._attachment, self._attention = parts.hooks, parts.attachment, parts.attention
        self._phases = parts.phases
        self._failed, self._records, self._logged = parts.failed, parts.records, parts.logged
        self.rules, self.mark, self.epochs, self.fast = parts.rules, parts.mark, parts.epochs, parts.fast
        self.profiles = parts.profiles
        self._root_is_open = False
        self._evaluated = False
        """Whether a call of `_evaluate` is under way: what it calls is none of its own."""
        self._incidents = parts.incidents
        self._transforms: int | None = 0
        """Gradients that `torch.func` was asked for; None once it does not matter."""

    def start(self) -> None:
        """Be told of the training from now on."""
        self._attachment.install(self)

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
        hooks = self._hooks
        if self._root_is_open:
            return call(root, *args, **kwargs)
        self._attention.note_call(root)
        if self._attention.is_elsewhere:
            return call(root, *args, **kwargs)
        for check in hooks.inputs.calls:
            args, kwargs = check(root, args, kwargs, self.next_step)
        if not root.training:
            for begin in hooks.evaluation_call.calls:
                begin(True)
        else:
            for end in hooks.training_call.calls:
                end()
        self._failed.forget()
        capture = self._guard.run("capture", self._loop.begin_forward, root, args, kwargs)
        # What follows the call to its end is chosen when it begins; a signal may strike in all that begins.
        after, raised = hooks.after_forward.calls, hooks.forward_raised.calls
        try:
            self._root_is_open = True
            self._measures.begin_forward(root, args, kwargs)
            for tell in hooks.before_forward.calls:
                tell(root, args, kwargs)
            self._phases.begin_forward(is_training=root.training)
            output = call(root, *args, **kwargs)
            self._root_is_open = False
            self._measures.end_forward(output)
            # Behind it: it has told the guard what looking at the modules' calls has taken.
            self._phases.end_forward()
            for take in after:
                take(output)
        except BaseException as error:
            for end in raised:
                end()
            self._measures.end_forward(raised=True)
            if capture is not None:
                self._guard.run("capture", self._loop.open.forget, capture)
                self._failed.note(error, capture)
            raise
        finally:
            self._root_is_open = False
        if capture is not None:
            self._guard.run("capture", capture.finish, output)
            self._guard.run("fast_path", self.fast.note_output, root, capture)
        return self._checked(output, capture) if hooks.outputs.calls else output

    def _checked(self, output: Any, capture: RootCapture | None) -> Any:
        """What the script gets of what a forward returned; raises where a policy says so."""
        try:
            for check in self._hooks.outputs.calls:
                output = check(output, self.next_step)
        except PolicyError:
            if capture is not None:
                self._guard.run("capture", self._loop.open.forget, capture)
            raise
        return output

    def before_evaluation(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Listen to the losses that follow; a checkpoint's forward has no gradients either."""
        self.fast.leave()
        hooks = self._hooks
        if self._root_is_open or self._evaluated or self._attention.is_elsewhere:
            return call
        if not self._model.root.training:
            self._phases.note_evaluation()
        for begin in hooks.evaluation_call.calls:
            begin(False)
        if hooks.evaluation_inputs.calls or hooks.evaluation_outputs.calls:
            return partial(self._evaluate, call)
        return call

    def _evaluate(self, call: Callable[..., Any], root: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call with gradients disabled, and have looked at what goes in and comes out."""
        for check in self._hooks.evaluation_inputs.calls:
            args, kwargs = check(root, args, kwargs, self.next_step)
        self._evaluated = True
        try:
            output = call(root, *args, **kwargs)
        finally:
            self._evaluated = False
        for take in self._hooks.evaluation_outputs.calls:
            output = take(output, self.next_step)
        return output

    def before_backward(self, tensors: Any, grad_tensors: Any) -> None:
        """Write the previous step's frame, note the loss."""
        pulse.beats += 1
        self.fast.leave()
        if self._attention.is_elsewhere:
            return
        for tell in self._hooks.before_any_backward.calls:
            tell()
        self._begin_backward(tensors, grad_tensors)

    def _begin_backward(self, tensors: Any, grad_tensors: Any, *, is_by_grad: bool = False) -> None:
        """What follows is a backward, or `torch.autograd.grad`; see whether it is one of this model."""
        hooks, before = self._hooks, self._loop.backward
        if self._is_of_others(tensors):
            for tell in hooks.foreign_backward.calls:
                tell(tensors)
            return
        # `Tensor.backward` stands between the script and torch.autograd.backward.
        site = site_of_call(sys._getframe(2), frames=_SITE_FRAMES)
        captures = self._loop.open.captures
        self._guard.run("fast_path", self.fast.note_loss, captures, tensors, grad_tensors, site)
        if hooks.before_backward.calls:
            sizes = {*self._loop.open.captures.values(), self._loop.open.samples}
            for look in hooks.before_backward.calls:
                look(tensors, sizes)
        for note in hooks.slow_backward.calls:
            note(tensors, self.next_step)
        if is_by_grad:
            self._guard.run("step", self._loop.begin_grad, tensors, grad_tensors, site)
        else:
            self._guard.run("step", self._loop.begin_backward, tensors, grad_tensors, site)
        for begin in hooks.backward_begun.calls:
            begin(self._loop.finished_early)
        if self._loop.backward is not before:
            self._phases.begin_backward()

    def _is_of_others(self, tensors: Any) -> bool:
        """Whether a backward that begins is none of this model, as far as is known before it."""
        if self._loop.is_foreign_backward():
            return True
        return self._loop.is_untrained and bool(self._guard.run("step", self._loop.passes_by, tensors))

    def after_backward(self, tensors: Any) -> None:
        """Count the micro-step; a non-finite loss is judged at once, for the script may skip the update."""
        pulse.beats += 1
        self.fast.leave()
        if self._attention.is_elsewhere:
            return
        self._phases.end_backward()
        for tell in self._hooks.after_any_backward.calls:
            tell()
        if self._loop.backward is None:
            return
        pulse.owner = self.mark
        if self.mark.wanted:
            self.mark.take(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))
        for tell in self._hooks.after_backward.calls:
            tell()
        if self._guard.run("step", self._loop.end_backward, tensors):
            self._phases.take_back_backward()
        self._raise_anomaly()

    def before_grad(self, outputs: Any, inputs: Any, grad_outputs: Any) -> bool:
        """The script asks for gradients, perhaps to update by hand, unless it trains by backward."""
        if self._loop.has_had_backward or self._attention.is_elsewhere:
            return False
        if not self._guard.run("step", self._loop.is_asked_for, inputs):
            return False
        pulse.beats += 1
        self.fast.leave()
        before = self._loop.backward
        self._begin_backward(outputs, grad_outputs, is_by_grad=True)
        return self._loop.backward is not before

    def note_transform(self) -> None:
        """Gradients are taken by `torch.func`: where no step is seen for long, that is why."""
        if self._transforms is not None and not self._attention.is_elsewhere:
            self._guard.run("step", self._note_transform)

    def _note_transform(self) -> None:
        assert self._transforms is not None
        self._transforms += 1
        if self._loop.has_had_backward or self._pipeline.last_step is not None:
            self._transforms = None
        elif self._transforms >= _MOST_TRANSFORMS:
            self._transforms = None
            report_unseen_gradients(self._incidents, raw_stack(sys._getframe(2), limit=_STACK_FRAMES))

    def after_grad(self, outputs: Any, inputs: Any, gradients: Any) -> None:
        """They are there: what a backward is elsewhere."""
        self._phases.end_backward()
        pulse.beats += 1
        if self._loop.backward is None:
            return
        self._guard.run("step", self._loop.end_grad, inputs, gradients)
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
            self._consider_without_update()

    def before_clearing(self, owner: nn.Module | Optimizer) -> None:
        """Look at gradients that are dropped before an update was made of them."""
        if not (self.fast.has_open_backward or self._loop.open.backwards):
            return
        if is_capturing() or self._attention.is_elsewhere:
            return
        if not self._guard.run("optimizers", self._model.is_cleared_by, owner):
            return
        self.fast.leave()
        self._guard.run("step", self._loop.look_before_clearing)
        self._raise_anomaly()
        self._consider_without_update()

    def _consider_without_update(self) -> None:
        """A step has ended of which no update is made: so may the next ones, while a fault lasts."""
        fault, optimizers = self._pipeline.fault, self.optimizers
        if fault is not None and len(optimizers) == 1 and not self._loop.open.forwards:
            self.fast.consider(optimizers[0], self._loop.take_newest(), fault, has_no_update=True)

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

    def before_closure(self, optimizer: Optimizer) -> None:
        """Have looked at what a closure may change before its update."""
        for tell in self._hooks.before_closure.calls:
            tell(optimizer)

    def before_step(self, optimizer: Optimizer) -> None:
        """Finish the step: gradients are final, parameters not yet updated."""
        pulse.beats += 1
        self.fast.leave()
        if is_capturing():
            return
        if self._schedule.is_off:
            self._guard.run("step", self._loop.pass_step, optimizer)
            return
        self._guard.run("step", self._loop.finish_at_optimizer, optimizer)
        self._raise_anomaly()
        for act in self._hooks.before_update.calls:
            act(optimizer)
        if self._schedule.features.update_ratios:
            self._guard.run("measures", self._measures.before_update, optimizer)
        self._phases.begin_update()

    def after_step(self, optimizer: Optimizer) -> None:
        """Look at what the update did, and let go of the step's inputs."""
        self._phases.end_update()
        pulse.beats += 1
        if self._schedule.is_off or self._attachment.is_paused:
            self._guard.run("step", self._rest_or_resume, optimizer)
            return
        hooks = self._hooks
        for end in hooks.after_update.calls:
            end()
        self._loop.open.captures.clear()
        for look in hooks.after_step.calls:
            look(optimizer, self._pipeline.last_step)
        if self._schedule.features.update_ratios:
            self._guard.run("measures", self._pipeline.look_after_update, optimizer)
        self.fast.consider(optimizer, self._loop.take_newest(), self._pipeline.fault)

    def _rest_or_resume(self, optimizer: Optimizer) -> None:
        """At level off nothing is left but a count of the steps; a command has everything put back."""
        if not self._schedule.is_off:
            self._attachment.resume()
            return
        self._attachment.pause()
        if self._attachment.owners == 1:
            self.fast.count(optimizer, self.next_step)

    # -- for the session

    def log(self, values: dict[str, LogValue]) -> None:
        """Give values to the most recent backward; too late for its frame, they get one of their own."""
        self._logged.log(values)

    def post(self, command: Command) -> bool:
        """Leave a command to be followed at the next step; False when too many are waiting. Any thread."""
        self.fast.ask_for_a_look()
        return self._schedule.mailbox.post(command)

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip all gradients to a global L2 norm, with the norm that the step is measured by anyway.

        Raises:
            AnomalyError: in `mode="raise"`, as before torch's clip functions.
        """
        clipped = self.fast.clip(self._model.layout.parameters, max_norm)
        if clipped is not None:
            return clipped
        self._timing.must_know_now()
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
        self._guard.run("step", self._pipeline.judge_all)

    @property
    def settings(self) -> Settings:
        """What is measured how often, as it was asked for last; from any thread."""
        return self._schedule.settings

    @property
    def asked_settings(self) -> Settings:
        """As `settings`, with the commands that wait for the next step; from any thread."""
        return self._schedule.asked_settings

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were seen to update the watched model."""
        return self._measures.optimizers

    @property
    def open_backwards(self) -> int:
        """Backwards of the step under way that Python has seen: while C follows the steps it sees none."""
        return self._loop.open.backwards

    @property
    def open_samples(self) -> int | None:
        """Samples of the step under way; None where they are not known."""
        return self._loop.open.samples or None

    @property
    def last_step(self) -> int | None:
        """Number of the newest finished step; None before the first."""
        following = self.fast.next_step
        return self._pipeline.last_step if following is None else following - 1

    @property
    def is_in_own_code(self) -> bool:
        """Whether the training thread is in the probe's own code; from any thread."""
        return self._guard.is_running

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the model is trained on the thread that asks; also while it was never called."""
        return self._attention.is_of_this_thread

    def share_in(self, error: BaseException) -> Share:
        """What this training has to do with an exception of the thread that asks."""
        return self._failed.share_in(error, self._loop, trains_here=self._attention.trains_here)

    @property
    def next_step(self) -> int:
        """Number of the step that is under way, or about to begin."""
        upcoming = self._loop.counter.upcoming
        if upcoming is not None:
            return upcoming
        last = self.last_step
        return self._pipeline.next_step if last is None else last + 1

    def evidence_of(self, error: BaseException) -> StepEvidence | None:
        """What is at hand of the step that an exception ended; None where it had no forward."""
        own = self._failed.take(error)
        if is_out_of_memory(error) or not (own or self._loop.open.captures):
            return None
        return self._pipeline.evidence_of_exception(self._loop.open, own)

    def stop(self) -> None:
        """Remove every hook; what is pending is kept for `close`. Idempotent."""
        self.fast.stop()
        self._unhook()
        for end in self._hooks.training_call.calls:
            end()
        self._stop_parts()

    def detach(self) -> None:
        """Remove every hook and forget what is pending; idempotent."""
        self.fast.abandon()
        self._unhook()
        self._stop_parts()
        self._failed.forget()
        self._pipeline.forget()
        self._measures.stop()
        self._loop.forget()

    def close(self) -> None:
        """Remove every hook and write what is pending; idempotent."""
        self.stop()
        self._guard.run("step", self._loop.finish_last)
        self._failed.forget()
        if "epoch" in (left := self._loop.open.logged):
            # It ended in the middle of an accumulation that no update came of any more.
            values = {name: left[name] for name in left if name in SCALARS}
            self._guard.run("step", self._pipeline.log, values)
        self._guard.run("step", self._pipeline.close)
        for end in self._hooks.close.calls:
            end(self.next_step)
        self._guard.run("measures", self._measures.stop)
        self._loop.forget()

    def _unhook(self) -> None:
        self._attachment.detach()
        self._loop.counter.leave()
        self.epochs.stop()

    def _stop_parts(self) -> None:
        for stop in self._hooks.stop.calls:
            stop()

    def _raise_anomaly(self) -> None:
        """Outside the guard: the one exception that is meant to reach the training loop."""
        anomaly = self._pipeline.take_anomaly()
        if anomaly is not None:
            raise anomaly
