"""What the steps of a training loop are: which forwards, backwards and updates belong together.

Called by the step tracker, inside its guard and on the training thread. Knows how a step begins and ends in
every kind of loop (accumulation, closures, skipped updates, adversaries, updates that no hook tells of) and
hands the finished ones to the pipeline.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any, Final

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..actions.step_hooks import StepHooks
from ..attach.hooks import Attachment
from ..attach.watched_model import WatchedModel
from ..compat import torch_engine, torch_ranks
from ..delivery.recorder.recorder import Recorder
from ..forensics.capture import RootCapture, begin_capture
from ..measure.statistics.statistics import PendingStatistics, TensorStatistics
from ..settings.config import ProbeConfig
from ..step.backward_time import time_own_backward
from ..step.losses import LossSite
from ..step.open_step import (
    MAX_CAPTURES,
    FinishedStep,
    OpenStep,
    are_made_by_others,
    batch_size,
    gradients_seen,
)
from ..step.stages import Stage, gradient_stage
from ..step.step_axis import trained_here
from ..wire import Layout
from .gathered_step import GatheredStep
from .loop_shape import CodeSite, site_of_call
from .passed_backwards import MissedSteps, PassedBackwards
from .step_measures import StepMeasures
from .step_pipeline import StepPipeline
from .verdict_timing import VerdictTiming

_MOST_GRADS: Final = 64
"""Calls of `torch.autograd.grad` of which no update is made, before they are forgotten."""
_SITE_FRAMES: Final = 12
"""Of the code that leads to an update: several functions of the script, and of the libraries in between."""


class TrainingLoop(GatheredStep):
    """Gathers what belongs to a step, and finishes it.

    Args:
        model: the watched one.
        measures: measures what runs in a forward or a backward.
        pipeline: takes the finished steps.
        timing: says whether the step under way may be judged after its update.
        attachment: what the hooks tell besides.
        hooks: what has to know of other parameters is called.
        config: whether and how much is kept for a replay.
        recorder: takes new layouts.

    Attributes:
        finished_early: whether the open step's frame is made already, at the first sign of a bad value.
        has_had_backward: whether the model is trained by `backward`, not by `torch.autograd.grad` alone.
    """

    def __init__(
        self,
        model: WatchedModel,
        measures: StepMeasures,
        pipeline: StepPipeline,
        timing: VerdictTiming,
        attachment: Attachment,
        *,
        hooks: StepHooks,
        config: ProbeConfig,
        recorder: Recorder,
    ) -> None:
        super().__init__(model, pipeline, first_step=config.first_step)
        self.finished_early = False
        self._measures = measures
        self._timing, self._attachment, self._hooks = timing, attachment, hooks
        self._config, self._recorder = config, recorder
        self._foreign_steps_seen = 0
        self.has_had_backward = False
        self._newest: FinishedStep | None = None
        self._early_step = 0
        self._line: CodeSite = ()
        """Of the newest backward."""
        self._early_passes: list[tuple[int, object]] = []
        self._passed = PassedBackwards()
        self._missed = MissedSteps()

    def begin_forward(self, root: nn.Module, args: Any, kwargs: Any) -> RootCapture | None:
        """A training forward begins; returns what it is to be replayed by, to be finished when it returns."""
        self._attachment.settle()
        if self.backward is not None:
            self._forget_failed_backward()
        if self.open.captures and (unused := self.open.forget_abandoned()):
            for note in self._hooks.unused_forward.calls:
                note(unused, self.counter.upcoming or self._pipeline.next_step)
        self._pipeline.complete_late()
        self._follow_unseen_update()
        if self.open.backwards and not self.open.is_by_grad and not self._model.find_optimizer():
            self._finish_unseen()
        self._model.note_forward(root)
        if not (self.open.forwards or self.open.backwards):
            self._pipeline.begin_step(self.counter.upcoming)
        self._has_called_root = True
        is_fed = are_made_by_others(args, kwargs)
        self.counter.open(is_fed=is_fed)
        samples = 0 if self.open.has_unsettled_forwards else batch_size(args, kwargs)
        self.open.forwards += 1
        self.open.calls += 1
        self.open.samples += samples
        if not self._config.replay or len(self.open.captures) >= MAX_CAPTURES:
            return None
        capture = begin_capture(root, args, kwargs, size_cap_bytes=self._config.capture_limit_bytes)
        self.open.captures[capture] = samples
        if is_fed:
            self.open.fed.add(capture.order)
        return capture

    def _follow_unseen_update(self) -> None:
        """End a step whose update no hook told of."""
        if not self.open.backwards or not self._model.was_updated_unseen():
            return
        self.open.is_first_pass = True
        if self._model.takes_unseen_update_for_a_step():
            self._finish_unseen()

    def finish_last(self) -> None:
        """The session ends: so does a step whose update no hook told of, or that had none as those before."""
        if not self.open.backwards or self.backward is not None:
            return
        if self._model.was_updated_unseen():
            if self._model.takes_unseen_update_for_a_step():
                self._finish_unseen()
            return
        if self._pipeline.fault is not None:
            self.look_before_clearing()  # it was no news, and has waited for its update
        is_idle = self._newest is not None and not (self.counter.updates or self.finished_early)
        if is_idle and not self._were_passed_through():
            self._finish_without_update()

    def _finish_unseen(self) -> None:
        measured = self.open.measured
        known = measured.read() if isinstance(measured, PendingStatistics) else measured
        gradients = known or self.open.after_backward
        step = self.counter.at_step(0)
        self._finish(stage_optimizer=None, step=step, gradients=gradients, is_updated=True)

    def _forget_failed_backward(self) -> None:
        """Take back a backward that raised, with the forwards that led to it."""
        assert self.backward is not None
        if self.backward.thread != threading.get_ident():
            return
        self._take_back_backward()
        for capture in self.open.unsettled():
            self.open.forget(capture)

    def begin_backward(self, tensors: Any, grad_tensors: Any, site: CodeSite = ()) -> None:
        """An outermost backward begins on this line: the previous frame is complete, the loss is known."""
        if self.open.is_by_grad:
            self._follow_unseen_update()
            self._forget_inner_gradients()
        self._begin_backward(tensors, grad_tensors, site)

    def begin_grad(self, outputs: Any, grad_outputs: Any, site: CodeSite) -> None:
        """The same of `torch.autograd.grad`; the parts of a model may be asked for one after the other."""
        is_further_part = self.open.is_by_grad and not self.open.has_unsettled_forwards
        self._begin_backward(outputs, grad_outputs, site)
        if is_further_part and self.backward is not None and self.backward.opened is self.open:
            self.losses.forget_after(self.backward.losses)

    def _begin_backward(self, tensors: Any, grad_tensors: Any, site: CodeSite) -> None:
        self._attachment.settle()
        self._take_back_backward()
        self._pipeline.complete_newest()
        if self.finished_early and self._model.gradients_were_cleared(may_wait=True):
            self.forget_early_verdict()
        else:
            self._follow_unseen_update()
            self._end_without_update()
            if self.is_foreign_backward():
                return
        if not self.open.backwards:
            self._foreign_steps_seen = self._unwatched_steps
            if not self.open.forwards:
                self._pipeline.begin_step(self.counter.upcoming)
        self._measures.begin_backward()
        opened = self.open
        if self._free_since_ns and torch_ranks.is_distributed():
            opened.before_backward_ns += time.perf_counter_ns() - self._free_since_ns
        self.backward = backward = self._running_backward()
        opened.measured = None
        opened.passes.append((trained_here.begin_backward(tensors), site))
        self._line, line = site, None if opened.is_first_pass else site or None
        self.losses.add(tensors, grad_tensors, LossSite(line, self._model.is_reduced))
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [tensor for tensor in given if isinstance(tensor, Tensor)]
        opened.loss = losses[0].detach() if losses else None
        if opened.before_backward_ns and losses:
            time_own_backward(losses[0], opened)
        if losses:
            self._measures.begin_own_gradients(losses[0], opened)
        if opened.captures:
            are_known = self.losses.are_finite(since=backward.losses) or not self._is_news(loss=True)
            next(reversed(opened.captures)).note_backward(
                losses, are_finite=are_known, is_from_one=grad_tensors is None
            )

    def is_asked_for(self, inputs: Any) -> bool:
        """Whether gradients of watched parameters are asked for, by `torch.autograd.grad`."""
        if self.open.is_by_grad and self.open.backwards >= _MOST_GRADS:
            # Nobody updates: a Fisher matrix, say.
            self._forget_grads()
        return self._model.has_any(inputs if isinstance(inputs, list | tuple) else (inputs,))

    def end_grad(self, inputs: Any, gradients: Any) -> None:
        """They are there; a step ends once the script has changed parameters."""
        self._free_since_ns = time.perf_counter_ns()
        self.backward = None
        opened = self.open
        opened.settle()
        given = inputs if isinstance(inputs, list | tuple) else (inputs,)
        by_name = self._model.sort_given(given, gradients)
        measured = self._model.measure_given(by_name)
        if opened.after_backward is not None:
            measured = measured.over(opened.after_backward)
        opened.is_by_grad, opened.after_backward = True, measured
        self._model.note_gradients_given(given)
        newest = self.losses.newest_on_cpu
        is_finite = measured.is_finite and (newest is None or math.isfinite(newest))
        if not is_finite and not self.finished_early:
            # The update by hand comes next.
            opened.given = by_name
            self._finish_early(measured)

    def _forget_inner_gradients(self) -> None:
        """They were those of an inner loop: the model is trained by the backward that begins."""
        opened = self.open
        if opened.is_by_grad:
            opened.is_by_grad, opened.after_backward, opened.backwards = False, None, 0
            self.losses.reset()

    def _forget_grads(self) -> None:
        """No update was made of the gradients of the open step, and none will be."""
        following = self.open.split_unsettled()
        self.losses.reset()
        following.logged = self.open.logged
        self.open = following

    def _was_skipped(self) -> bool:
        """Whether the script has cleared the gradients without having made any use of them."""
        if not self.open.backwards or self.open.is_first_pass or self.open.is_by_grad:
            return False
        if self.open.forwards and not self.open.has_unsettled_forwards:
            # Another loss of the same forward: the gradients of each are kept apart, and put together later.
            return False
        return self._model.gradients_were_cleared(may_wait=self.open.cleared is not None)

    def _end_without_update(self) -> None:
        """End a step of whose gradients no update was made, if the script goes on to the next one."""
        opened = self.open
        is_missed = opened.backwards > 0 and self._others_updates > opened.others_updates
        is_missed = is_missed and not self.counter.updates
        if is_missed and self._missed.are_many and self._model.find_optimizer():
            opened.missed = self._missed.take()
            self._finish_without_update()
            return
        if self._was_skipped():
            self._drop_step()
        if is_missed and (self._newest is None or self._newest.opened is not opened):
            self._missed.note()

    def _drop_step(self) -> None:
        """The script has cleared the gradients and made no update of them."""
        if self._were_passed_through():
            # On their way to a generator, say: no step of this model.
            self._passed.note_passed(self.open)
            following = self.open.split_unsettled()
            self.losses.reset()
            following.logged = self.open.logged
            self.open = following
        else:
            self._finish_without_update()

    def _finish_without_update(self) -> None:
        """Nothing was made of the gradients, and nothing will be."""
        following = self.open.split_unsettled()
        of_others = self._step_of_others
        number = self.open.number if of_others is None else of_others
        step = self.counter.at_early_verdict(since=number)
        cleared = self.open.cleared
        gradients = self._model.unknown_gradients() if cleared is None else cleared
        self._loses_gradients |= cleared is None and self._pipeline.fault is not None
        self._finish(stage_optimizer=None, step=step, gradients=gradients)
        self.counter.close(step)
        self._pipeline.complete_newest()
        self.open = following

    def _were_passed_through(self) -> bool:
        """Whether the gradients that were cleared without an update were not meant for this model."""
        if self._step_of_others is not None:
            return True
        if self._unwatched_steps > self._foreign_steps_seen:
            return True
        newest = self.losses.newest_on_cpu
        return self._passed.are_all_of(self.open) and (newest is None or math.isfinite(newest))

    @property
    def _unwatched_steps(self) -> int:
        """Steps of optimizers that update no watched model."""
        return self._attachment.foreign_steps - self._others_updates

    def end_backward(self, tensors: Any) -> bool:
        """It has returned: a micro-step is complete; whether it was another model's."""
        self._free_since_ns = time.perf_counter_ns()
        trained_here.end_backward()
        if self._has_passed_us_by(tensors):
            self._take_back_backward()
            return True
        backward, self.backward = self.backward, None
        if backward is not None and backward.opened is not self.open:
            # An optimizer in the backward has made its steps already.
            return False
        self.has_had_backward = True
        self.open.settle()
        self.open.number, self.open.others_updates = self.counter.number, self._others_updates
        self._measures.end_backward()
        if self._measures.wants_first_norm and self.open.backwards == 1:
            self.open.first_norm = self._model.measure_gradients().total_norm
        self._model.note_backward()
        if not self._model.tells_of_updates:
            # The code that updates may clear the gradients before the next forward.
            self.open.after_backward = self._model.measure_gradients()
        newest = None if self._timing.is_late else self.losses.newest_on_cpu
        if self.finished_early or self._passed.are_all_of(self.open):
            return False
        if newest is not None and not math.isfinite(newest) and self._is_news(loss=True):
            self._finish_early(self._model.measure_gradients(), self._stage_before_unscaling())
        return False

    def _stage_before_unscaling(self) -> Stage | None:
        """What gradients are that no clipping was seen of: a GradScaler's are scaled yet."""
        return "scaled" if self.losses.was_scaled and self.open.measured is None else None

    def _has_passed_us_by(self, tensors: Any) -> bool:
        """Whether the backward that has just ended reached no watched parameter: a discriminator's, say."""
        captures, backward = self.open.captures, self.backward
        if backward is None or not captures or gradients_seen(captures) > backward.gradients_seen:
            return False
        if any(capture.declined for capture in captures):
            return False
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        return not self._model.is_below(tensor for tensor in given if isinstance(tensor, Tensor))

    def look_before_clip(self) -> None:
        """Measure before clipping spreads one bad value over all gradients, or hides it."""
        # torch's clip functions call each other; the first call sees the gradients as they were.
        if not self.open.backwards or self.finished_early or self.open.measured is not None:
            return
        if self._passed.are_all_of(self.open):
            return
        gradients = self.measure_gradients()
        if isinstance(gradients, TensorStatistics) and self._are_news(gradients):
            self._finish_early(gradients)
        else:
            self.open.measured = gradients

    def look_before_clearing(self) -> None:
        """The script drops gradients of which no update was made: the last moment to measure and to replay.

        Waits for the device: so has a script that leaves an update out, as a rule, to know that it should.
        """
        opened = self.open
        has_some = opened.backwards and not (opened.is_by_grad or opened.is_first_pass)
        if not has_some or self.finished_early or self.backward is not None or opened.cleared is not None:
            return
        if self._model.was_updated_unseen() or self._were_passed_through():
            return
        measured = opened.measured
        gradients = measured.read() if isinstance(measured, PendingStatistics) else measured
        gradients = gradients or self._model.measure_gradients()
        loss = self.losses.read(forwards=opened.forwards).raw
        stage = self._stage_before_unscaling()
        if not gradients.is_finite or not (loss is None or math.isfinite(loss)):
            following = opened.split_unsettled()
            self._finish_early(gradients, stage)
            self.open = following
        else:
            # Norms of scaled gradients among those of others would look like an explosion.
            opened.cleared = self._model.unknown_gradients() if stage == "scaled" else gradients

    def measure_gradients(self) -> TensorStatistics | PendingStatistics:
        """Measure the gradients, or start to where their verdict may be late."""
        if self._timing.waits:
            return self._model.measure_gradients()
        return self._model.start_measuring_gradients()

    def _finish_early(self, gradients: TensorStatistics, stage: Stage | None = None) -> None:
        self._early_passes = self.open.passes
        self._early_step = self.counter.at_early_verdict(site=self._line)
        trained_here.use([number for number, _ in self._early_passes], self._early_step)
        self._finish(stage_optimizer=None, step=self._early_step, gradients=gradients, stage=stage)
        self.finished_early = True

    def forget_early_verdict(self) -> None:
        """No update came of the step that was finished early, if there is one."""
        if self.finished_early:
            self.counter.close(self._early_step)
            self.finished_early = False

    def take_newest(self) -> FinishedStep | None:
        """Return the step that was finished last, once."""
        newest, self._newest = self._newest, None
        return newest

    def _note_layout(self, record: Layout | None) -> None:
        """The model may have other parameters now."""
        if record is not None:
            self._recorder.event(record)
            for call in self._hooks.new_layout.calls:
                call(self._model.layout)

    def pass_step(self, optimizer: Optimizer) -> None:
        """Count a step of which nothing is looked at."""
        self._pipeline.pass_step(self._number_of(optimizer))

    def _number_of(self, optimizer: Optimizer) -> int:
        """The number of the step that an optimizer is about to end."""
        passes = self._early_passes if self.finished_early else self.open.passes
        self._passed.note_own(self.open, passes)
        site = site_of_call(sys._getframe(1), frames=_SITE_FRAMES) if self.counter.wants_sites else ()
        return self.counter.at_step(
            self._model.note_step_of(optimizer), backwards=[number for number, _ in passes], site=site
        )

    def finish_skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler has skipped the update, perhaps: no optimizer hook tells of it."""
        if self._model.is_updated_by(optimizer):
            self.finish_at_optimizer(optimizer)

    def finish_at_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer is about to update: the step is complete."""
        step = self._number_of(optimizer)
        if self.finished_early:
            self.finished_early = False
            self.open = OpenStep()
            self.losses.reset()
            return
        self._measures.note_optimizer(optimizer)
        is_due = self._model.is_due_for_a_look() and self.open.measured is None
        if is_due:
            self._note_layout(self._model.look())
        self._finish(stage_optimizer=optimizer, step=step)

    def _finish(
        self,
        *,
        stage_optimizer: Optimizer | None,
        step: int,
        gradients: TensorStatistics | PendingStatistics | None = None,
        stage: Stage | None = None,
        is_updated: bool = False,
    ) -> None:
        """Make the step's frame and have it judged."""
        if not torch_engine.in_backward():
            self._take_back_backward()
        if gradients is None:
            gradients = self.open.measured or self.measure_gradients()
        stage = stage or gradient_stage(
            optimizer=stage_optimizer,
            was_scaled=self.losses.was_scaled,
            is_distributed=self._model.is_reduced,
            is_sharded=self._model.is_sharded,
        )
        is_early = stage_optimizer is None
        finished = self.close_step(
            gradients, step=step, stage=stage, is_early=is_early, is_updated=is_updated
        )
        self._pipeline.finish(finished)
        self._newest = finished
        self._attachment.note_step()
        self._note_layout(self._model.follow())
        self._free_since_ns = time.perf_counter_ns()
