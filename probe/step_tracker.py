"""Follows a training loop step by step: gathers what belongs to a step, measures it once, hands it on.

The `Listener` of `hooks.py`; one per session, used on the training thread. A step's frame is made before the
optimizer's update (or at the first sign of a non-finite value, if that is earlier) and written when the next
backward begins, because until then `run.log` may add to it.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
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
from .layout import ModelLayout, unwrap
from .losses import LossMeter
from .recorder import MemorySample, Recorder
from .stages import gradient_stage
from .statistics import Floats, TensorStatistics, plan_measurement, tensor_norms, tensor_statistics
from .step_counter import StepCounter
from .wire import Event, Frame

_MAX_CAPTURES: Final = 64
"""Micro-steps whose inputs are kept for a replay; with more, the step is not replayed."""
_LATE_FRAME_NS: Final = 500_000_000
"""A finished frame waits at most this long for `run.log` once the next forward begins."""
_CUDA_MEMORY_NS: Final = 1_000_000_000
"""How often the CUDA allocator is asked; its statistics take about 0.1 ms."""

LogValue = Callable[[], float]


@dataclass(slots=True)
class _OpenStep:
    """What has been gathered since the previous frame."""

    captures: list[RootCapture] = field(default_factory=list)
    forwards: int = 0
    backwards: int = 0
    samples: int = 0
    loss: Tensor | None = None
    measured: TensorStatistics | None = None
    """Gradients as they were before clipping."""
    logged: dict[str, LogValue] = field(default_factory=dict)


@dataclass(slots=True)
class _PendingFrame:
    """A finished frame that `run.log` may still add to."""

    frame: Frame
    logged: dict[str, LogValue]
    since_ns: int


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
        self._optimizer_id = None if optimizer is None else id(optimizer)
        self._parameter_ids = frozenset(map(id, layout.parameters))
        self._is_distributed = isinstance(root, nn.parallel.DistributedDataParallel)
        self._parameters = dict(zip(layout.names, layout.parameters, strict=True))
        self._plan = plan_measurement(layout.parameters)
        self._open = _OpenStep()
        self._losses = LossMeter()
        self._root_is_open = False
        self._has_called_root = False
        self._finished_early = False
        self._has_optimizer: bool | None = True if optimizer is not None else None
        """None until it is known whether an optimizer updates the model."""
        self._pending: _PendingFrame | None = None
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
        """Say yes to the optimizer given to `watch`, else to any that updates a watched parameter."""
        if self._optimizer_id is not None:
            return id(optimizer) == self._optimizer_id
        return any(id(p) in self._parameter_ids for group in optimizer.param_groups for p in group["params"])

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the forward; what a replay needs is captured around it when it is a training forward."""
        if self._root_is_open or not torch.is_grad_enabled() or torch_private.in_backward() or is_replaying():
            return call(root, *args, **kwargs)
        capture = self._guard.run("capture", self._begin_forward, root, args, kwargs)
        self._root_is_open = True
        try:
            output = call(root, *args, **kwargs)
        finally:
            self._root_is_open = False
        if capture is not None:
            self._guard.run("capture", capture.finish, output)
        return output

    def before_backward(self, tensors: Any, grad_tensors: Any) -> None:
        """Write the previous step's frame, note the loss."""
        if is_replaying() or self._is_foreign_backward():
            return
        self._guard.run("step", self._begin_backward, tensors, grad_tensors)

    def after_backward(self) -> None:
        """Count the micro-step; a non-finite loss is judged at once, for the script may skip the update."""
        if is_replaying() or self._is_foreign_backward():
            return
        self._guard.run("step", self._end_backward)
        self._raise_anomaly()

    def after_scale(self, loss: Any, scaled: Any) -> None:
        """Remember the loss that a GradScaler scaled."""
        self._guard.run("loss", self._losses.note_scaling, loss, scaled)

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

    def detach(self) -> None:
        """Remove every hook and forget what is pending; idempotent."""
        self._attachment.detach()
        self._pending = None
        self._open = _OpenStep()

    def close(self) -> None:
        """Remove every hook and write what is pending; idempotent."""
        self._attachment.detach()
        self._guard.run("step", self._write_pending)
        self._open = _OpenStep()

    # -- the parts of a step

    def _begin_forward(self, root: nn.Module, args: Any, kwargs: Any) -> RootCapture | None:
        self._attachment.settle()
        now_ns = time.perf_counter_ns()
        if self._pending is not None and now_ns - self._pending.since_ns > _LATE_FRAME_NS:
            self._write_pending()
        if self._open.backwards and not self._is_updated_by_optimizer():
            self._finish(stage_optimizer=None, step=self.counter.at_step(0))
        self._has_called_root = True
        self._open.forwards += 1
        self._open.samples += _batch_size(args, kwargs)
        if not self._config.replay or len(self._open.captures) >= _MAX_CAPTURES:
            return None
        capture = begin_capture(root, args, kwargs, size_cap_bytes=self._config.capture_limit_bytes)
        self._open.captures.append(capture)
        return capture

    def _begin_backward(self, tensors: Any, grad_tensors: Any) -> None:
        self._write_pending()
        if self._finished_early and self._gradients_were_cleared():
            self.counter.close()
            self._finished_early = False
        self._open.measured = None
        self._losses.add(tensors, grad_tensors)
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [tensor for tensor in given if isinstance(tensor, Tensor)]
        self._open.loss = losses[0].detach() if losses else None
        if self._open.captures:
            self._open.captures[-1].note_backward(losses)

    def _is_foreign_backward(self) -> bool:
        """Whether another model of the script is being trained: ours ran no forward since its last frame."""
        return self._has_called_root and not self._open.forwards

    def _end_backward(self) -> None:
        self._open.backwards += 1
        if self._has_optimizer is False:
            # The script updates by hand and may clear the gradients before the next forward.
            self._open.measured = self._measure()
        newest = self._losses.newest_on_cpu
        if newest is not None and not np.isfinite(newest) and not self._finished_early:
            self._finish_early(self._measure())

    def _look_before_clip(self) -> None:
        # torch's clip functions call each other; the first call sees the gradients as they were.
        if not self._open.backwards or self._finished_early or self._open.measured is not None:
            return
        gradients = self._measure()
        if gradients.nan_count.any() or gradients.inf_count.any():
            self._finish_early(gradients)
        else:
            self._open.measured = gradients

    def _finish_early(self, gradients: TensorStatistics) -> None:
        self._finish(stage_optimizer=None, step=self.counter.at_early_verdict(), gradients=gradients)
        self._finished_early = True

    def _finish_at_optimizer(self, optimizer: Optimizer) -> None:
        self._has_optimizer = True
        step = self.counter.at_step(id(optimizer))
        if self._finished_early:
            self._finished_early = False
            self._open = _OpenStep()
            self._losses.reset()
            return
        self._finish(stage_optimizer=optimizer, step=step)

    def _finish(
        self, *, stage_optimizer: Optimizer | None, step: int, gradients: TensorStatistics | None = None
    ) -> None:
        """Make the step's frame and have it judged."""
        if gradients is None:
            gradients = self._open.measured or self._measure()
        opened, self._open = self._open, _OpenStep()
        loss, was_scaled = self._losses.read(), self._losses.was_scaled
        self._losses.reset()
        stage = gradient_stage(
            optimizer=stage_optimizer, was_scaled=was_scaled, is_distributed=self._is_distributed
        )
        parameter_norm = self._parameter_norm(step)
        now = time.time()
        root = self._root()
        evidence = StepEvidence(
            root=nn.Module() if root is None else root,
            captures=opened.captures,
            parameters=self._parameters,
            loss=opened.loss,
            stage=stage,
            was_scaled=was_scaled,
            micro_step=opened.backwards - 1 if opened.backwards > 1 else None,
            no_replay_reason=_why_not_replayable(opened),
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
        self._note_anomaly(begun or [])
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
        self._pending = _PendingFrame(frame, opened.logged, time.perf_counter_ns())
        self.last_step = step

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

    def _gradients_were_cleared(self) -> bool:
        """Whether the script dropped a step that was judged before its update: it will not be updated."""
        gradients = [parameter.grad for parameter in self._layout.parameters if parameter.grad is not None]
        return not gradients or not any(bool(gradient.count_nonzero()) for gradient in gradients)

    def _is_updated_by_optimizer(self) -> bool:
        """Look once among all objects for an optimizer that has yet to make its first step."""
        if self._has_optimizer is None:
            optimizers = (item for item in gc.get_objects() if issubclass(type(item), Optimizer))
            self._has_optimizer = any(self.owns(optimizer) for optimizer in optimizers)
        return self._has_optimizer

    def _note_anomaly(self, begun: list[Event]) -> None:
        critical = [event for event in begun if event.severity == "critical"]
        if critical and self._config.mode == "raise":
            self._anomaly = AnomalyError(critical[0].message)

    def _raise_anomaly(self) -> None:
        """Outside the guard: the one exception that is meant to reach the training loop."""
        if self._anomaly is not None:
            anomaly, self._anomaly = self._anomaly, None
            raise anomaly


def _why_not_replayable(opened: _OpenStep) -> str | None:
    if not opened.forwards:
        return "the watched model's forward was not called through model(...) with gradients enabled"
    if opened.forwards > _MAX_CAPTURES:
        return f"the step has {opened.forwards} forward passes; at most {_MAX_CAPTURES} are kept"
    return None


def _batch_size(args: Any, kwargs: Any) -> int:
    """First dimension of the first tensor that the root was called with; 0 when there is none."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return int(value.shape[0]) if value.dim() else 0
    return 0
