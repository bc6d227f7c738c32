"""The analysis calls as methods of a session: without a model given they are about the watched one.

Mixed into `Probe`. Where there is no model to look at (closed, or the model is gone) they say so in an empty
result; with NANSCOPE_OFF the calls that do the user's work do it all the same, and measure next to nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...step.log_values import LOGGED_PREFIX
from ..progress_calls import ProgressCalls
from .default_limits import DEFAULT_EXPLOSION_NORM, DEFAULT_RATIO, DEFAULT_VANISHING_NORM
from .summary_calls import SummaryCalls

if TYPE_CHECKING:
    from .backward_pass import BackwardReport
    from .diffusion_pipeline import DiffusionPipelineReport
    from .forward_pass import ForwardReport
    from .gradient_checks import GradientReport, GradientViolations
    from .gradient_flow import GradientFlow
    from .inspection import ModelInspection
    from .monitoring import MonitoredStep
    from .optimizers import OptimizerReport
    from .parameters import ParameterReport, ParameterSnapshot
    from .tensor import TensorReport
    from .training_step import TrainingStepReport

_NOTHING: Final = "no model is watched here"
_SILENT: Final = logging.Logger("nanscope.silent", level=logging.CRITICAL + 1)
"""A session logs its own findings; those of `monitor_training_step` would be the same once more."""


class AnalysisCalls(ProgressCalls, SummaryCalls):
    """Methods of `Probe`. Each is described at the function of the same name."""

    @property
    def aio(self) -> AsyncAnalysisCalls:
        """The same calls for a coroutine, see `probe.aio`."""
        return AsyncAnalysisCalls(self)

    # -- tensors

    def analyze_tensor(self, tensor: Tensor, name: str | None = None) -> TensorReport:
        """See `probe.analyze_tensor`."""
        from .tensor import analyze_tensor

        return analyze_tensor(tensor, name)

    def check_tensor_anomalies(self, tensor: Tensor, name: str | None = None) -> dict[str, Any]:
        """See `probe.check_tensor_anomalies`."""
        from .anomaly_checks import check_tensor_anomalies

        return check_tensor_anomalies(tensor, name)

    def check_gradient_anomalies(self, model: nn.Module | None = None) -> dict[str, Any]:
        """See `probe.check_gradient_anomalies`; without a model to look at nothing is counted."""
        from .anomaly_checks import check_gradient_anomalies

        model = model if model is not None else self._watched_model()
        return check_gradient_anomalies(nn.Module() if model is None else model)

    def monitor_resources(
        self,
        cpu_percent: float | None = 90.0,
        memory_percent: float | None = 90.0,
        gpu_memory_mb: float | None = None,
        gpu_percent: float | None = None,
    ) -> dict[str, Any]:
        """See `probe.monitor_resources`; what is above a limit is an event of this session alone."""
        from .resource_calls import monitor_resources

        return monitor_resources(cpu_percent, memory_percent, gpu_memory_mb, gpu_percent, sessions=[self])

    def watch_tensor(self, name: str, tensor: Tensor) -> None:
        """Record the statistics of a tensor with the most recent backward, as series `<name>/norm`, ...

        Norm, largest absolute element, mean, std and the counts of NaN and Inf, as it is now. Waits for no
        device. Call it at every step that should have a value; misuse is logged once, and never raises.
        """
        if self.active:
            self._guard.run("watch_tensor", self._record_tensor, name, tensor)

    # -- diffusion

    def analyze_diffusion_pipeline(self, pipeline: Any) -> DiffusionPipelineReport:
        """See `probe.analyze_diffusion_pipeline`."""
        from .diffusion_pipeline import analyze_diffusion_pipeline

        return analyze_diffusion_pipeline(pipeline)

    def monitor_diffusion_step(
        self,
        pipeline: Any,
        step: int,
        latents: Any,
        callback_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """See `probe.monitor_diffusion_step`, options included; findings are events of this session alone."""
        from .diffusion_steps import monitor_diffusion_step

        sessions = [self] if self.active else []
        return monitor_diffusion_step(
            pipeline, step, latents, callback_kwargs, **{"sessions": sessions, **options}
        )

    # -- gradients

    def check_gradients(
        self, model: nn.Module | None = None, threshold: float | None = None, *, loss_scale: float = 1.0
    ) -> GradientReport:
        """See `probe.check_gradients`."""
        from .gradient_checks import GradientReport, check_gradients

        model = model if model is not None else self._watched_model()
        if model is None:
            return GradientReport(
                model="", total_norm=None, threshold=threshold, parameters=(), note=_NOTHING
            )
        return check_gradients(model, threshold, loss_scale=loss_scale)

    def check_gradient_explosion(
        self,
        model: nn.Module | None = None,
        threshold: float = DEFAULT_EXPLOSION_NORM,
        *,
        loss_scale: float = 1.0,
    ) -> GradientViolations:
        """See `probe.check_gradient_explosion`."""
        from .gradient_checks import GradientViolations, check_gradient_explosion

        model = model if model is not None else self._watched_model()
        if model is None:
            return GradientViolations(
                kind="explosion", threshold=threshold, offenders=(), checked=0, missing=(), note=_NOTHING
            )
        return check_gradient_explosion(model, threshold, loss_scale=loss_scale)

    def check_gradient_vanishing(
        self,
        model: nn.Module | None = None,
        threshold: float = DEFAULT_VANISHING_NORM,
        *,
        loss_scale: float = 1.0,
    ) -> GradientViolations:
        """See `probe.check_gradient_vanishing`."""
        from .gradient_checks import GradientViolations, check_gradient_vanishing

        model = model if model is not None else self._watched_model()
        if model is None:
            return GradientViolations(
                kind="vanishing", threshold=threshold, offenders=(), checked=0, missing=(), note=_NOTHING
            )
        return check_gradient_vanishing(model, threshold, loss_scale=loss_scale)

    def analyze_gradient_flow(
        self,
        model: nn.Module | None = None,
        *,
        ratio_limit: float = DEFAULT_RATIO,
        loss_scale: float = 1.0,
    ) -> GradientFlow:
        """See `probe.analyze_gradient_flow`."""
        from .gradient_flow import GradientFlow, analyze_gradient_flow

        model = model if model is not None else self._watched_model()
        if model is None:
            return GradientFlow(
                model="",
                total_norm=None,
                ratio_limit=ratio_limit,
                layers=(),
                dies_at=None,
                blows_up_at=None,
                note=_NOTHING,
            )
        return analyze_gradient_flow(model, ratio_limit=ratio_limit, loss_scale=loss_scale)

    # -- model

    def snapshot_parameters(
        self, model: nn.Module | None = None, *, keep_values: bool = True
    ) -> ParameterSnapshot:
        """See `probe.snapshot_parameters`."""
        from .parameters import snapshot_parameters

        model = model if model is not None else self._watched_model()
        return snapshot_parameters(nn.Module() if model is None else model, keep_values=keep_values)

    def check_model_parameters(
        self,
        model: nn.Module | None = None,
        *,
        since: ParameterSnapshot | None = None,
        optimizer: Optimizer | None = None,
    ) -> ParameterReport:
        """See `probe.check_model_parameters`."""
        from .parameters import ParameterReport, check_model_parameters

        model = model if model is not None else self._watched_model()
        if model is None:
            return ParameterReport(
                model="", parameters=(), since=None, stale_in_optimizer=None, note=_NOTHING
            )
        return check_model_parameters(model, since=since, optimizer=optimizer)

    def inspect_model(
        self, model: nn.Module | None = None, input: Any = None, *, optimizer: Optimizer | None = None
    ) -> ModelInspection:
        """See `probe.inspect_model`."""
        from .inspection import ModelInspection, inspect_model

        model = model if model is not None else self._watched_model()
        if model is None:
            return ModelInspection(
                model="",
                parameters=0,
                trainable=0,
                shared=0,
                modules=(),
                components=(),
                memory=None,
                notes=(_NOTHING,),
            )
        return inspect_model(model, input, optimizer=optimizer)

    def analyze_optimizer(self, optimizer: Optimizer, model: nn.Module | None = None) -> OptimizerReport:
        """See `probe.analyze_optimizer`."""
        from .optimizers import analyze_optimizer

        return analyze_optimizer(optimizer, model if model is not None else self._watched_model())

    # -- passes and steps

    def debug_forward_pass(self, model: nn.Module, inputs: Any, layer_hooks: bool = True) -> ForwardReport:
        """See `probe.debug_forward_pass`."""
        from .forward_pass import debug_forward_pass

        return debug_forward_pass(model, inputs, layer_hooks and self.active)

    def debug_backward_pass(
        self, loss: Tensor, retain_graph: bool = False, *, model: nn.Module | None = None
    ) -> BackwardReport:
        """See `probe.debug_backward_pass`."""
        from .backward_pass import debug_backward_pass

        model = model if model is not None else self._watched_model()
        return debug_backward_pass(loss, retain_graph, model=model)

    def debug_training_step(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any,
        loss_fn: Callable[[Any, Any], Tensor],
        optimizer: Optimizer,
        **options: Any,
    ) -> TrainingStepReport:
        """See `probe.debug_training_step`, options included."""
        from .training_step import debug_training_step

        if not self.active:
            options = {"layer_hooks": False, "measure_updates": False, **options}
        return debug_training_step(model, inputs, targets, loss_fn, optimizer, **options)

    def monitor_training_step(
        self,
        model: nn.Module | None,
        loss: Tensor | float | None,
        step: int,
        *,
        explosion_threshold: float | None = None,
        vanishing_threshold: float | None = None,
        logger: logging.Logger | None = None,
    ) -> MonitoredStep:
        """See `probe.monitor_training_step`; logs only to a logger given here: the session does by itself."""
        from .monitoring import MonitoredStep, monitor_training_step

        model = model if model is not None else self._watched_model()
        if model is None:
            return MonitoredStep(step=step, loss=None, total_norm=None, findings=(), note=_NOTHING)
        return monitor_training_step(
            model,
            loss,
            step,
            explosion_threshold=explosion_threshold,
            vanishing_threshold=vanishing_threshold,
            logger=logger or _SILENT,
        )

    def _record_tensor(self, name: str, tensor: Tensor) -> None:
        from .watched_tensors import deferred_statistics

        try:
            values = deferred_statistics(name, tensor)
        except ValueError as error:
            self._complain(name, str(error))
            return
        self._log_deferred({f"{LOGGED_PREFIX}{series}": read for series, read in values.items()})


class AsyncAnalysisCalls:
    """The calls of one session as coroutines; `probe.aio` says what is safe."""

    def __init__(self, session: AnalysisCalls) -> None:
        from ..progress_calls import awaitable_update
        from .threads import awaitable_reading, awaitable_running

        self.analyze_tensor = awaitable_reading(session.analyze_tensor)
        self.check_gradients = awaitable_reading(session.check_gradients)
        self.check_gradient_explosion = awaitable_reading(session.check_gradient_explosion)
        self.check_gradient_vanishing = awaitable_reading(session.check_gradient_vanishing)
        self.analyze_gradient_flow = awaitable_reading(session.analyze_gradient_flow)
        self.analyze_optimizer = awaitable_reading(session.analyze_optimizer)
        self.snapshot_parameters = awaitable_reading(session.snapshot_parameters)
        self.check_model_parameters = awaitable_reading(session.check_model_parameters)
        self.monitor_training_step = awaitable_reading(session.monitor_training_step)
        self.inspect_model = awaitable_running(session.inspect_model)
        self.debug_forward_pass = awaitable_running(session.debug_forward_pass)
        self.debug_backward_pass = awaitable_running(session.debug_backward_pass)
        self.debug_training_step = awaitable_running(session.debug_training_step)
        self.check_tensor_anomalies_async = awaitable_reading(session.check_tensor_anomalies)
        self.check_gradient_anomalies_async = awaitable_reading(session.check_gradient_anomalies)
        self.update_progress_async = awaitable_update(session.update_progress)
