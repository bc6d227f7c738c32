"""Follows a training loop step by step: gathers what belongs to a step, measures it once, hands it on.

The `Listener` of `hooks.py`; one per session, used on the training thread. A step's frame is made before the
optimizer's update (or at the first sign of a non-finite value, if that is earlier) and written when the next
backward begins, because until then `run.log` may add to it.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
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
from .frames import build_frame, build_observation, loss_scalars, memory_scalars
from .guard import Guard
from .hooks import attach
from .incidents import IncidentReporter, StepEvidence
from .layout import ModelLayout, describe_model, unwrap
from .losses import LossMeter
from .open_step import (
    MAX_CAPTURES,
    LogValue,
    OpenStep,
    PendingFrame,
    RunningBackward,
    batch_size,
    gradients_seen,
    is_surely_zero,
    updated_by,
    why_not_replayable,
)
from .recorder import MemorySample, Recorder
from .stages import Stage, gradient_stage
from .statistics import Floats, TensorStatistics, plan_measurement, tensor_norms, tensor_statistics
from .step_counter import StepCounter
from .wire import Frame

_logger = logging.getLogger(__name__)
_LATE_FRAME_NS: Final = 500_000_000
"""A finished frame waits at most this long for `run.log` once the next forward begins."""
_LOOK_AT_MODEL_EVERY: Final = 20
"""Steps between two looks for new trainable parameters: 1.7 ms for 2,000 of them."""
_CUDA_MEMORY_NS: Final = 1_000_000_000
"""How often the CUDA allocator is asked; its statistics take about 0.1 ms."""


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
        self._layout, self._config, self._guard = layout, config, guard
        self._recorder, self._incidents = recorder, incidents
        self._updated_ids = frozenset(map(id, layout.parameters))
        if optimizer is not None:
            self._updated_ids = frozenset(updated_by(optimizer))
        self._is_distributed = isinstance(root, nn.parallel.DistributedDataParallel)
        self._parameters = dict(zip(layout.names, layout.parameters, strict=True))
        self._plan = plan_measurement(layout.parameters)
        self._next_look_at_model = _LOOK_AT_MODEL_EVERY
        self._foreign_steps_seen = 0
        self._keys: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._key_of_parameter: dict[int, int] = {}
        self._backward: RunningBackward | None = None
        self._open = OpenStep()
        self._losses = LossMeter()
        self._root_is_open = False
        self._has_called_root = False
        self._finished_early = False
        self._has_optimizer: bool | None = True if optimizer is not None else None
        """None until it is known whether an optimizer updates the model."""
        self._pending: PendingFrame | None = None
        self._previous_finish_ns: int | None = None
        self._spent_at_finish_ns = 0
        self._memory_seen: MemorySample | None = None
        self._cuda_read_ns = 0
        self._anomaly: AnomalyError | None = None
        # The session watches over the model's life; holding it here would keep it alive for ever.
        self._root = weakref.ref(unwrap(root))
        self._attachment = attach(self, {id(module): module for module in (root, unwrap(root))}.values())

    # -- Listener

    def owns(self, optimizer: Optimizer) -> bool:
        """Say yes to any that updates a watched parameter, or what the one given to `watch` updates.

        So a wrapper of that one counts too, and the one that a script makes anew after unfreezing layers.
        """
        return bool(self._guard.run("optimizers", self._updates_ours, optimizer))

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the forward; what a replay needs is captured around it when it is a training forward."""
        if self._root_is_open or not torch.is_grad_enabled() or torch_private.in_backward() or is_replaying():
            return call(root, *args, **kwargs)
        if self._attachment.in_trial:
            return call(root, *args, **kwargs)
        capture = self._guard.run("capture", self._begin_forward, root, args, kwargs)
        self._root_is_open = True
        try:
            output = call(root, *args, **kwargs)
        except BaseException:
            if capture is not None:
                self._guard.run("capture", self._forget_forward, capture)
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
            self._recorder.frame(
                Frame(
                    step=self.last_step, time=time.time(), layout=self._layout.record.layout, scalars=scalars
                )
            )

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

    def _updates_ours(self, optimizer: Optimizer) -> bool:
        updated, root = updated_by(optimizer), self._root()
        known = set(map(id, self._layout.parameters))
        added = set() if root is None else set(map(id, root.parameters())) - known
        if not updated.isdisjoint(added):
            self._next_look_at_model = 0
            return True
        return not updated.isdisjoint(self._updated_ids)

    def _key_of(self, optimizer: Optimizer) -> int:
        """Number that an optimizer shares with those which update some of the same parameters."""
        key = self._keys.get(optimizer)
        if key is None:
            updated = updated_by(optimizer)
            shared = (self._key_of_parameter[item] for item in updated if item in self._key_of_parameter)
            key = self._keys[optimizer] = next(shared, len(self._key_of_parameter) + 1)
            self._key_of_parameter |= dict.fromkeys(updated, key)
        return key

    def _begin_forward(self, root: nn.Module, args: Any, kwargs: Any) -> RootCapture | None:
        self._attachment.settle()
        self._forget_failed_backward()
        for capture in [capture for capture in self._open.captures if capture.is_abandoned]:
            self._forget_forward(capture)
        now_ns = time.perf_counter_ns()
        if self._pending is not None and now_ns - self._pending.since_ns > _LATE_FRAME_NS:
            self._write_pending()
        if self._open.backwards and not self._is_updated_by_optimizer():
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

    def _forget_forward(self, capture: RootCapture) -> None:
        """Take back a forward that raised, or that no backward can follow any more."""
        samples = self._open.captures.pop(capture, None)
        if samples is not None:
            self._open.forwards -= 1
            self._open.samples -= samples

    def _forget_failed_backward(self) -> None:
        """Take back a backward that raised, with the forwards that led to it."""
        if self._backward is None or self._backward.thread != threading.get_ident():
            return
        self._take_back_backward()
        for capture in [item for item in self._open.captures if item.order > self._open.settled]:
            self._forget_forward(capture)

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
        if self._finished_early and self._gradients_were_cleared(may_wait=True):
            self.counter.close()
            self._finished_early = False
        elif self._open.backwards and self._gradients_were_cleared(may_wait=False):
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
        if self._attachment.foreign_steps > self._foreign_steps_seen:
            # They were only passed through, on their way to a discriminator, say: no step of this model.
            for capture in [item for item in self._open.captures if item.order <= self._open.settled]:
                self._forget_forward(capture)
            self._losses.reset()
            self._open.backwards, self._open.loss = 0, None
            return
        newest = [item for item in self._open.captures if item.order > self._open.settled]
        samples = {capture: self._open.captures[capture] for capture in newest}
        for capture in newest:
            self._forget_forward(capture)
        step = self.counter.at_early_verdict()
        unknown = tensor_statistics([None] * len(self._layout.parameters))
        self._finish(stage_optimizer=None, step=step, gradients=unknown)
        self.counter.close()
        self._write_pending()
        self._open.captures, self._open.forwards = samples, len(samples)
        self._open.samples = sum(samples.values())

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
        if self._open.captures:
            self._open.settled = next(reversed(self._open.captures)).order
        self._open.backwards += 1
        if self._has_optimizer is False:
            # The script updates by hand and may clear the gradients before the next forward.
            self._open.measured = self._measure()
        newest = self._losses.newest_on_cpu
        if newest is not None and not np.isfinite(newest) and not self._finished_early:
            stage: Stage | None = "scaled" if self._losses.was_scaled else None
            self._finish_early(self._measure(), stage)

    def _has_passed_us_by(self, tensors: Any) -> bool:
        """Whether the backward that has just ended reached no watched parameter: a discriminator's, say."""
        captures, backward = self._open.captures, self._backward
        if backward is None or not captures or any(capture.declined for capture in captures):
            return False
        if gradients_seen(captures) > backward.gradients_seen:
            return False
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        ours = set(map(id, self._layout.parameters))
        losses = [tensor for tensor in given if isinstance(tensor, Tensor)]
        return not any(id(leaf) in ours for leaf in torch_private.leaves_of(losses))

    def _look_before_clip(self) -> None:
        # torch's clip functions call each other; the first call sees the gradients as they were.
        if not self._open.backwards or self._finished_early or self._open.measured is not None:
            return
        gradients = self._measure()
        if gradients.nan_count.any() or gradients.inf_count.any():
            self._finish_early(gradients)
        else:
            self._open.measured = gradients

    def _finish_early(self, gradients: TensorStatistics, stage: Stage | None = None) -> None:
        step = self.counter.at_early_verdict()
        self._finish(stage_optimizer=None, step=step, gradients=gradients, stage=stage)
        self._finished_early = True

    def _finish_skipped(self, optimizer: Optimizer) -> None:
        if self._updates_ours(optimizer):
            self._finish_at_optimizer(optimizer)

    def _finish_at_optimizer(self, optimizer: Optimizer) -> None:
        self._has_optimizer = True
        step = self.counter.at_step(self._key_of(optimizer))
        if self._finished_early:
            self._finished_early = False
            self._open = OpenStep()
            self._losses.reset()
            return
        if self._next_look_at_model <= 0 and self._open.measured is None:
            self._follow_model()
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
            gradients = self._open.measured or self._measure()
        opened, self._open = self._open, OpenStep()
        loss, was_scaled = self._losses.read(), self._losses.was_scaled
        self._losses.reset()
        stage = stage or gradient_stage(
            optimizer=stage_optimizer, was_scaled=was_scaled, is_distributed=self._is_distributed
        )
        parameter_norm = self._parameter_norm(step)
        now = time.time()
        root = self._root()
        evidence = StepEvidence(
            root=nn.Module() if root is None else root,
            captures=[capture for capture in opened.captures if not capture.is_abandoned],
            parameters=self._parameters,
            loss=opened.loss,
            stage=stage,
            was_scaled=was_scaled,
            micro_step=opened.backwards - 1 if opened.backwards > 1 else None,
            no_replay_reason=why_not_replayable(opened),
        )
        total_norm = gradients.total_norm
        observation = build_observation(
            step,
            layout=self._layout,
            loss=loss.value,
            gradients=gradients,
            total_norm=total_norm,
            parameter_norm=parameter_norm,
        )
        begun = self._guard.run("detectors", self._incidents.judge, observation, now, evidence)
        if begun is not None and self._config.mode == "raise" and self._incidents.critical is not None:
            # A later step of a running episode would ruin the weights just as the first one.
            self._anomaly = AnomalyError(self._incidents.critical)
        frame = build_frame(
            step,
            now,
            layout=self._layout,
            stage=stage,
            gradients=gradients,
            parameter_norm=parameter_norm,
            scalars={
                **loss_scalars(loss),
                **({} if total_norm is None else {"grad_norm": total_norm}),
                **({"samples": float(opened.samples)} if opened.samples else {}),
                **self._memory_scalars(),
                **self._time_scalars(),
            },
        )
        self._write_pending()
        self._pending = PendingFrame(frame, opened.logged, time.perf_counter_ns())
        self.last_step = step
        self._next_look_at_model -= 1
        if self._next_look_at_model <= 0:
            self._follow_model()

    def _follow_model(self) -> None:
        """Give parameters that were added, replaced or unfrozen rows of their own, in a new layout."""
        self._next_look_at_model = _LOOK_AT_MODEL_EVERY
        root = self._root()
        if root is None:
            return
        known = frozenset(map(id, self._layout.parameters))
        new = [p for p in root.parameters() if p.requires_grad and id(p) not in known]
        if new:
            number = self._layout.record.layout + 1
            self._layout = describe_model(root, number=number, name=self._layout.record.model, also=known)
            self._parameters = dict(zip(self._layout.names, self._layout.parameters, strict=True))
            self._updated_ids |= set(map(id, new))
            self._recorder.event(self._layout.record)
            _logger.info("nanscope: the model has %d new trainable parameters, recorded from now", len(new))
        if new or not self._plan.fits(self._layout.parameters):
            self._plan = plan_measurement(self._layout.parameters)

    def _measure(self) -> TensorStatistics:
        return tensor_statistics([parameter.grad for parameter in self._layout.parameters], self._plan)

    def _parameter_norm(self, step: int) -> Floats | None:
        if step % self._config.parameter_norm_every:
            return None
        return tensor_norms(self._layout.parameters, self._plan)

    def _time_scalars(self) -> dict[str, float]:
        """Step time, and the probe's share of it: everything of ours since the previous frame."""
        now_ns, spent_ns = time.perf_counter_ns(), self._guard.spent_so_far_ns()
        previous, self._previous_finish_ns = self._previous_finish_ns, now_ns
        ours_ns, self._spent_at_finish_ns = spent_ns - self._spent_at_finish_ns, spent_ns
        if previous is None:
            return {}
        scalars = {"step_time_s": (now_ns - previous) / 1e9, "probe_fraction": ours_ns / (now_ns - previous)}
        if self._guard.failures:
            scalars["probe_failures"] = float(self._guard.failures)
        return scalars

    def _memory_scalars(self) -> dict[str, float]:
        scalars: dict[str, float] = {}
        memory = self._recorder.memory
        if memory is not None and memory is not self._memory_seen:
            self._memory_seen = memory
            scalars |= memory_scalars(memory)
        now_ns = time.perf_counter_ns()
        if torch_private.cuda_is_initialised() and now_ns - self._cuda_read_ns > _CUDA_MEMORY_NS:
            self._cuda_read_ns = now_ns
            scalars["cuda_allocated_bytes"] = float(torch.cuda.memory_allocated())
            scalars["cuda_reserved_bytes"] = float(torch.cuda.memory_reserved())
        return scalars

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        late = {name: read() for name, read in pending.logged.items()}
        self._recorder.frame(
            msgspec.structs.replace(pending.frame, scalars={**pending.frame.scalars, **late})
        )

    def _gradients_were_cleared(self, *, may_wait: bool) -> bool:
        """Whether the script dropped what its backwards gave: no update will be made of it."""
        gradients = (parameter.grad for parameter in self._layout.parameters)
        return all(gradient is None or is_surely_zero(gradient, may_wait=may_wait) for gradient in gradients)

    def _is_updated_by_optimizer(self) -> bool:
        """Look once among all objects for an optimizer that has yet to make its first step."""
        if self._has_optimizer is None:
            optimizers = (item for item in gc.get_objects() if issubclass(type(item), Optimizer))
            self._has_optimizer = any(self._updates_ours(optimizer) for optimizer in optimizers)
        return self._has_optimizer

    def _raise_anomaly(self) -> None:
        """Outside the guard: the one exception that is meant to reach the training loop."""
        if self._anomaly is not None:
            anomaly, self._anomaly = self._anomaly, None
            raise anomaly
