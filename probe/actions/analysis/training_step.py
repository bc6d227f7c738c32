"""`debug_training_step`: one whole training step done for the user, and all that can be said of it."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...attach.layout import ModelLayout
from ...compat.torch_memory import local_shard
from ...measure.statistics.statistics import Floats, tensor_norms
from ...measure.statistics.tensor_measures import difference_norms
from . import tables
from .backward_pass import BackwardReport, debug_backward_pass
from .call_results import Result
from .forward_pass import ForwardReport, debug_forward_pass
from .gradient_checks import GradientReport, measure_gradients, require_layout
from .gradient_flow import GradientFlow, flow_of
from .recorded_calls import split_input


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterUpdate(Result):
    """What the optimizer did to one parameter."""

    name: str
    norm: float
    """L2 norm before the update."""
    update_norm: float
    """L2 norm of the change."""

    @property
    def ratio(self) -> float | None:
        """Update-to-weight ratio; None of a parameter that was 0."""
        return self.update_norm / self.norm if self.norm else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStepReport(Result):
    """One step: forward, loss, backward, update."""

    _derived = ("ok", "problems")

    model: str
    loss: float
    forward: ForwardReport
    backward: BackwardReport
    gradients: GradientReport
    flow: GradientFlow | None
    """None when no parameter got a gradient."""
    updates: tuple[ParameterUpdate, ...]
    """Of every trainable parameter; empty when they were not measured."""
    learning_rates: tuple[float, ...]
    """Of each parameter group."""
    stepped: bool
    """Whether the optimizer made its update."""
    forward_s: float
    backward_s: float
    step_s: float
    """Of the optimizer's step; with a closure, of all its evaluations."""
    was_training: bool
    """Whether the model was in training mode."""

    @property
    def unmoved(self) -> tuple[str, ...]:
        """Parameters that the update left as they were though it moved others."""
        moved = any(update.update_norm for update in self.updates)
        return tuple(update.name for update in self.updates if not update.update_norm) if moved else ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person should look at, a sentence each."""
        found: list[str] = []
        if not math.isfinite(self.loss):
            found.append(f"the loss is {tables.number(self.loss)}")
        if self.forward.first_nonfinite is not None:
            found.append(f"NaN or Inf begins in {tables.root_or(self.forward.first_nonfinite)}")
        if self.gradients.nonfinite:
            found.append(f"gradients with NaN or Inf: {tables.names(self.gradients.nonfinite)}")
        if self.gradients.missing:
            found.append(f"no gradient for {tables.names(self.gradients.missing)}")
        if self.flow is not None and self.flow.dies_at is not None:
            found.append(f"the gradient dies at {tables.root_or(self.flow.dies_at)}")
        if self.flow is not None and self.flow.blows_up_at is not None:
            found.append(f"the gradient blows up at {tables.root_or(self.flow.blows_up_at)}")
        if not self.was_training:
            found.append("the model is in evaluation mode")
        if self.stepped and self.updates and not any(update.update_norm for update in self.updates):
            found.append("the update moved no parameter")
        if not self.stepped:
            found.append("the update was skipped: gradients were not finite")
        return tuple(found)

    @property
    def ok(self) -> bool:
        """There is no problem."""
        return not self.problems

    def __str__(self) -> str:
        """Problems and times, then forward, gradient flow and updates."""
        rates = ", ".join(tables.number(rate) for rate in self.learning_rates)
        lines = [
            f"training step of {self.model}: {'ok' if self.ok else 'NOT OK'}, "
            f"loss {tables.number(self.loss)}, gradient norm {tables.number(self.gradients.total_norm)}, "
            f"learning rate {rates}",
            f"  forward {tables.duration(self.forward_s)}, backward {tables.duration(self.backward_s)}, "
            f"optimizer {tables.duration(self.step_s)}",
            *(f"  {problem}" for problem in self.problems),
            "",
            str(self.forward),
        ]
        if self.flow is not None:
            lines += ["", str(self.flow)]
        if self.updates:
            rows = [
                (u.name, tables.number(u.norm), tables.number(u.update_norm), tables.number(u.ratio))
                for u in self.updates
            ]
            lines += ["", *tables.table(("parameter", "norm", "update", "update / norm"), rows)]
        return "\n".join(lines)


def debug_training_step(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    loss_fn: Callable[[Any, Any], Tensor],
    optimizer: Optimizer,
    *,
    zero_grad: bool = True,
    skip_nonfinite: bool = False,
    layer_hooks: bool = True,
    measure_updates: bool = True,
) -> TrainingStepReport:
    """Do one training step and report all of it; the weights end up exactly as after the same plain step.

    That is: `optimizer.zero_grad()`, `loss_fn(model(inputs), targets)`, `backward()`, `optimizer.step()`. An
    optimizer that wants a closure (L-BFGS) gets one: the report is then of its first evaluation. Waits for
    the device many times.

    Args:
        model: the model.
        inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        targets: what `loss_fn` gets as its second argument.
        loss_fn: gives one number.
        optimizer: steps once.
        zero_grad: False adds to the gradients that are there.
        skip_nonfinite: make no update when the gradients have NaN or Inf; off, because a plain step would.
        layer_hooks: False measures no layers in the forward.
        measure_updates: compare the parameters before and after, which needs a copy of them for the step.

    Raises:
        ValueError: no module or optimizer, nothing trainable, or a loss that is not one number with a graph.
    """
    layout = require_layout(model)
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if zero_grad:
        optimizer.zero_grad()
    step = _Step(model, layout, optimizer, measure_updates=measure_updates)

    def evaluate() -> Tensor:
        return step.evaluate(inputs, targets, loss_fn, layer_hooks=layer_hooks)

    if _wants_closure(optimizer):
        step.update(lambda: optimizer.step(evaluate))  # type: ignore[arg-type]
    else:
        evaluate()
        if not (skip_nonfinite and step.is_nonfinite):
            step.update(optimizer.step)
    return step.report()


class _Step:
    """What is gathered of the step under way."""

    def __init__(
        self, model: nn.Module, layout: ModelLayout, optimizer: Optimizer, *, measure_updates: bool
    ) -> None:
        self.forward: ForwardReport | None = None
        self.backward: BackwardReport | None = None
        self.gradients: GradientReport | None = None
        self._model, self._layout, self._optimizer = model, layout, optimizer
        self._measures_updates = measure_updates
        self._was_training = model.training
        self._updates: tuple[ParameterUpdate, ...] = ()
        self._stepped = False
        self._step_s = 0.0

    def evaluate(
        self, inputs: Any, targets: Any, loss_fn: Callable[[Any, Any], Tensor], *, layer_hooks: bool
    ) -> Tensor:
        """Forward, loss and backward; a line search calls it again, and then it is not looked at."""
        if self.forward is not None:
            self._optimizer.zero_grad()
            args, kwargs = split_input(inputs)
            loss = loss_fn(self._model(*args, **kwargs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss
        self.forward = debug_forward_pass(self._model, inputs, layer_hooks)
        loss = loss_fn(self.forward.output, targets)
        self.backward = debug_backward_pass(loss, model=self._model)
        self.gradients = measure_gradients(self._model)
        return loss

    @property
    def is_nonfinite(self) -> bool:
        """Whether some gradient has NaN or Inf."""
        return self.gradients is not None and bool(self.gradients.nonfinite)

    def update(self, step: Callable[[], object]) -> None:
        """Run the optimizer's step between two looks at the parameters."""
        parameters = [local_shard(parameter).detach() for parameter in self._layout.parameters]
        before = [parameter.clone() for parameter in parameters] if self._measures_updates else None
        began_ns = time.perf_counter_ns()
        step()
        if any(parameter.is_cuda for parameter in parameters):
            torch.cuda.synchronize()
        self._step_s = (time.perf_counter_ns() - began_ns) / 1e9
        self._stepped = True
        if before is not None:
            norms, moved = tensor_norms(before), difference_norms(parameters, before)
            self._updates = _updates(self._layout.names, norms, moved)

    def report(self) -> TrainingStepReport:
        """Put together what was gathered."""
        assert self.forward is not None and self.backward is not None and self.gradients is not None
        types = {layer.name: layer.type for layer in self._layout.record.layers}
        return TrainingStepReport(
            model=self._layout.record.model,
            loss=self.backward.loss,
            forward=self.forward,
            backward=self.backward,
            gradients=self.gradients,
            flow=None if self.gradients.total_norm is None else flow_of(self.gradients, types),
            updates=self._updates,
            learning_rates=tuple(float(group.get("lr", math.nan)) for group in self._optimizer.param_groups),
            stepped=self._stepped,
            forward_s=self.forward.duration_s,
            backward_s=self.backward.duration_s,
            step_s=self._step_s,
            was_training=self._was_training,
        )


def _updates(names: tuple[str, ...], norms: Floats, moved: Floats) -> tuple[ParameterUpdate, ...]:
    return tuple(
        ParameterUpdate(name=name, norm=float(norm), update_norm=float(change))
        for name, norm, change in zip(names, norms, moved, strict=True)
    )


def _wants_closure(optimizer: Optimizer) -> bool:
    """Whether `step` cannot be called without a closure."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
