"""Follows a training loop step by step: gathers what belongs to a step, measures it once, hands it on.

The `Listener` of `hooks.py`; one per session, used on the training thread. A step's frame is made before the
optimizer's update (or at the first sign of a non-finite value, if that is earlier) and written when the next
backward begins, because until then `run.log` may add to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from . import torch_private
from .config import ProbeConfig
from .errors import AnomalyError
from .forensics.capture import RootCapture, begin_capture
from .forensics.replay import is_replaying
from .frames import MeasuredStep, build_frame, build_observation
from .guard import Guard
from .hooks import attach
from .incidents import IncidentReporter, StepEvidence
from .layout import ModelLayout, unwrap
from .losses import LossMeter
from .open_step import (
    MAX_CAPTURES,
    LogValue,
    OpenStep,
    PendingFrame,
    RunningBackward,
    batch_size,
    gradients_seen,
    why_not_replayable,
)
from .recorder import Recorder
from .stages import Stage, gradient_stage
from .statistics import TensorStatistics
from .step_counter import StepCounter
from .step_meters import StepMeters
from .watched_model import WatchedModel
from .wire import Frame

_LATE_FRAME_NS: Final = 500_000_000
"""A finished frame waits at most this long for `run.log` once the next forward begins."""


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
        self.counter = StepCounter()
        self.last_step: int | None = None
        self._config, self._guard = config, guard
        self._recorder, self._incidents = recorder, incidents
        self._model = WatchedModel(unwrap(root), layout, optimizer)
        self._meters = StepMeters(guard, recorder)
        self._is_distributed = isinstance(root, nn.parallel.DistributedDataParallel)
        self._foreign_steps_seen = 0
        self._backward: RunningBackward | None = None
        self._open = OpenStep()
        self._losses = LossMeter()
        self._root_is_open = False
        self._has_called_root = False
        self._finished_early = False
        self._pending: PendingFrame | None = None
        self._anomaly: AnomalyError | None = None
        self._attachment = attach(self, {id(module): module for module in (root, unwrap(root))}.values())

    # -- Listener

    def owns(self, optimizer: Optimizer) -> bool:
        """Say yes to any that updates a watched parameter, or what the one given to `watch` updates.

        So a wrapper of that one counts too, and the one that a script makes anew after unfreezing layers.
        """
        return bool(self._guard.run("optimizers", self._model.is_updated_by, optimizer))

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the forward; what a replay needs is captured around it when it is a training forward."""
        if self._root_is_open or not torch.is_grad_enabled() or self._attachment.in_trial:
            return call(root, *args, **kwargs)
        if torch_private.in_backward() or is_replaying():
            return call(root, *args, **kwargs)
        capture = self._guard.run("capture", self._begin_forward, root, args, kwargs)
        self._root_is_open = True
        try:
            output = call(root, *args, **kwargs)
        except BaseException:
            if capture is not None:
                self._guard.run("capture", self._open.forget, capture)
            raise
        finally:
            self._root_is_open = False
        if capture is not None:
            self._guard.run("capture", capture.finish, output)
        return output

    def before_backward(self, tensors: Any, grad_tensors: Any) -> None:
        """Write the previous step's frame, note the loss."""
        if is_replaying() or self._is_foreign_backward() or self._attachment.in_trial:
            return
        self._guard.run("step", self._begin_backward, tensors, grad_tensors)

    def after_backward(self, tensors: Any) -> None:
        """Count the micro-step; a non-finite loss is judged at once, for the script may skip the update."""
        if is_replaying() or self._backward is None or self._attachment.in_trial:
            return
        self._guard.run("step", self._end_backward, tensors)
        self._raise_anomaly()

    def after_scale(self, loss: Any, scaled: Any) -> None:
        """Remember the loss that a GradScaler scaled."""
        self._guard.run("loss", self._losses.note_scaling, loss, scaled)

    def after_scaler_step(self, optimizer: Optimizer) -> None:
        """Finish a step whose update a GradScaler skipped: no optimizer hook tells of it."""
        if self._open.backwards or self._finished_early:
            self._guard.run("step", self._finish_skipped, optimizer)
            self._raise_anomaly()

    def before_clip(self) -> None:
        """Look before clipping spreads one bad value over all gradients, or hides it."""
        self._guard.run("step", self._look_before_clip)
        self._raise_anomaly()

    def before_step(self, optimizer: Optimizer) -> None:
        """Finish the step: gradients are final, parameters not yet updated."""
        self._guard.run("step", self._finish_at_optimizer, optimizer)
        self._raise_anomaly()

    def after_step(self, optimizer: Optimizer) -> None:
        """Let go of the step's inputs."""
        self._open.captures.clear()

    # -- for the session

    def log(self, values: dict[str, LogValue]) -> None:
        """Give values to the most recent backward; too late for its frame, they get one of their own."""
        if self._open.backwards:
            self._open.logged |= values
        elif self._pending is not None:
            self._pending.logged |= values
        elif self.last_step is not None:
            scalars = {name: read() for name, read in values.items()}
            number = self._model.layout.record.layout
            self._recorder.frame(Frame(step=self.last_step, time=time.time(), layout=number, scalars=scalars))

    @property
    def next_step(self) -> int:
        """Number of the step that is under way, or about to begin."""
        return 0 if self.last_step is None else self.last_step + 1

    def stop(self) -> None:
        """Remove every hook; what is pending is kept for `close`. Idempotent."""
        self._attachment.detach()

    def detach(self) -> None:
        """Remove every hook and forget what is pending; idempotent."""
        self._attachment.detach()
        self._pending = None
        self._open = OpenStep()

    def close(self) -> None:
        """Remove every hook and write what is pending; idempotent."""
        self._attachment.detach()
        self._guard.run("step", self._write_pending)
        self._open = OpenStep()

    # -- the parts of a step

    def _begin_forward(self, root: nn.Module, args: Any, kwargs: Any) -> RootCapture | None:
        self._attachment.settle()
        self._forget_failed_backward()
        self._open.forget_abandoned()
        now_ns = time.perf_counter_ns()
        if self._pending is not None and now_ns - self._pending.since_ns > _LATE_FRAME_NS:
            self._write_pending()
        if self._open.backwards and not self._model.find_optimizer():
            self._finish(stage_optimizer=None, step=self.counter.at_step(0))
        self._has_called_root = True
        samples = batch_size(args, kwargs)
        self._open.forwards += 1
        self._open.samples += samples
        if not self._config.replay or len(self._open.captures) >= MAX_CAPTURES:
            return None
        capture = begin_capture(root, args, kwargs, size_cap_bytes=self._config.capture_limit_bytes)
        self._open.captures[capture] = samples
        return capture

    def _forget_failed_backward(self) -> None:
        """Take back a backward that raised, with the forwards that led to it."""
        if self._backward is None or self._backward.thread != threading.get_ident():
            return
        self._take_back_backward()
        for capture in self._open.unsettled():
            self._open.forget(capture)

    def _take_back_backward(self) -> None:
        backward, self._backward = self._backward, None
        if backward is None:
            return
        self._losses.forget_after(backward.losses)
        self._open.loss, self._open.measured = backward.loss, backward.measured

    def _begin_backward(self, tensors: Any, grad_tensors: Any) -> None:
        self._attachment.settle()
        self._take_back_backward()
        self._write_pending()
        if self._finished_early and self._model.gradients_were_cleared(may_wait=True):
            self.counter.close()
            self._finished_early = False
        elif self._open.backwards and self._model.gradients_were_cleared(may_wait=False):
            self._drop_step()
        if not self._open.backwards:
            self._foreign_steps_seen = self._attachment.foreign_steps
        opened = self._open
        self._backward = RunningBackward(
            opened,
            threading.get_ident(),
            self._losses.count,
            gradients_seen(opened.captures),
            opened.loss,
            opened.measured,
        )
        opened.measured = None
        self._losses.add(tensors, grad_tensors)
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [tensor for tensor in given if isinstance(tensor, Tensor)]
        opened.loss = losses[0].detach() if losses else None
        if opened.captures:
            next(reversed(opened.captures)).note_backward(losses)

    def _drop_step(self) -> None:
        """The script has cleared the gradients and made no update of them."""
        following = self._open.split_unsettled()
        if self._attachment.foreign_steps > self._foreign_steps_seen:
            # They were only passed through, on their way to a discriminator, say: no step of this model.
            self._losses.reset()
            following.logged = self._open.logged
            self._open = following
            return
        step = self.counter.at_early_verdict()
        self._finish(stage_optimizer=None, step=step, gradients=self._model.unknown_gradients())
        self.counter.close()
        self._write_pending()
        self._open = following

    def _is_foreign_backward(self) -> bool:
        """Whether another model of the script is being trained: ours ran no forward since its last frame."""
        return self._has_called_root and not self._open.forwards

    def _end_backward(self, tensors: Any) -> None:
        if self._has_passed_us_by(tensors):
            self._take_back_backward()
            return
        backward, self._backward = self._backward, None
        if backward is not None and backward.opened is not self._open:
            # An optimizer in the backward has made its steps already.
            return
        self._open.settle()
        if self._model.is_updated_by_hand:
            # The script updates by hand and may clear the gradients before the next forward.
            self._open.measured = self._model.measure_gradients()
        newest = self._losses.newest_on_cpu
        if newest is not None and not np.isfinite(newest) and not self._finished_early:
            stage: Stage | None = "scaled" if self._losses.was_scaled else None
            self._finish_early(self._model.measure_gradients(), stage)

    def _has_passed_us_by(self, tensors: Any) -> bool:
        """Whether the backward that has just ended reached no watched parameter: a discriminator's, say."""
        captures, backward = self._open.captures, self._backward
        if backward is None or not captures or any(capture.declined for capture in captures):
            return False
        if gradients_seen(captures) > backward.gradients_seen:
            return False
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        return not self._model.is_below(tensor for tensor in given if isinstance(tensor, Tensor))

    def _look_before_clip(self) -> None:
        # torch's clip functions call each other; the first call sees the gradients as they were.
        if not self._open.backwards or self._finished_early or self._open.measured is not None:
            return
        gradients = self._model.measure_gradients()
        if gradients.nan_count.any() or gradients.inf_count.any():
            self._finish_early(gradients)
        else:
            self._open.measured = gradients

    def _finish_early(self, gradients: TensorStatistics, stage: Stage | None = None) -> None:
        step = self.counter.at_early_verdict()
        self._finish(stage_optimizer=None, step=step, gradients=gradients, stage=stage)
        self._finished_early = True

    def _finish_skipped(self, optimizer: Optimizer) -> None:
        if self._model.is_updated_by(optimizer):
            self._finish_at_optimizer(optimizer)

    def _finish_at_optimizer(self, optimizer: Optimizer) -> None:
        step = self.counter.at_step(self._model.note_step_of(optimizer))
        if self._finished_early:
            self._finished_early = False
            self._open = OpenStep()
            self._losses.reset()
            return
        is_due = self._model.is_due_for_a_look() and self._open.measured is None
        if is_due and (layout := self._model.look()):
            self._recorder.event(layout)
        self._finish(stage_optimizer=optimizer, step=step)

    def _finish(
        self,
        *,
        stage_optimizer: Optimizer | None,
        step: int,
        gradients: TensorStatistics | None = None,
        stage: Stage | None = None,
    ) -> None:
        """Make the step's frame and have it judged."""
        if not torch_private.in_backward():
            self._take_back_backward()
        if gradients is None:
            gradients = self._open.measured or self._model.measure_gradients()
        opened, self._open = self._open, OpenStep()
        loss, was_scaled = self._losses.read(), self._losses.was_scaled
        self._losses.reset()
        stage = stage or gradient_stage(
            optimizer=stage_optimizer, was_scaled=was_scaled, is_distributed=self._is_distributed
        )
        norm_is_due = step % self._config.parameter_norm_every == 0
        measured = MeasuredStep(
            step=step,
            time=time.time(),
            layout=self._model.layout,
            stage=stage,
            gradients=gradients,
            total_norm=gradients.total_norm,
            parameter_norm=self._model.parameter_norms() if norm_is_due else None,
            loss=loss,
            samples=opened.samples,
        )
        self._judge(measured, opened, was_scaled=was_scaled)
        meters = {**self._meters.read_memory(), **self._meters.read_time()}
        self._write_pending()
        self._pending = PendingFrame(
            build_frame(measured, meters=meters), opened.logged, time.perf_counter_ns()
        )
        self.last_step = step
        if new_layout := self._model.follow():
            self._recorder.event(new_layout)

    def _judge(self, measured: MeasuredStep, opened: OpenStep, *, was_scaled: bool) -> None:
        evidence = StepEvidence(
            root=self._model.root,
            captures=[capture for capture in opened.captures if not capture.is_abandoned],
            parameters=self._model.parameters,
            loss=opened.loss,
            stage=measured.stage,
            was_scaled=was_scaled,
            micro_step=opened.backwards - 1 if opened.backwards > 1 else None,
            no_replay_reason=why_not_replayable(opened),
        )
        observation = build_observation(measured)
        begun = self._guard.run("detectors", self._incidents.judge, observation, measured.time, evidence)
        if begun is not None and self._config.mode == "raise" and self._incidents.critical is not None:
            # A later step of a running episode would ruin the weights just as the first one.
            self._anomaly = AnomalyError(self._incidents.critical)

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        late = {name: read() for name, read in pending.logged.items()}
        self._recorder.frame(
            msgspec.structs.replace(pending.frame, scalars={**pending.frame.scalars, **late})
        )

    def _raise_anomaly(self) -> None:
        """Outside the guard: the one exception that is meant to reach the training loop."""
        if self._anomaly is not None:
            anomaly, self._anomaly = self._anomaly, None
            raise anomaly
