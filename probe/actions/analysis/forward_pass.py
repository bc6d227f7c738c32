"""`debug_forward_pass`: one real forward of the user's, with statistics of every layer's activations.

The forward is the training's own: its output has its graph, buffers are updated, a session counts it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...compat import torch_modes
from ...measure.statistics.statistics import tensor_statistics
from ...measure.statistics.tensor_measures import ActivationStatistics, activation_statistics
from . import tables
from .call_results import NOT_IN_JSON, Result
from .gradient_checks import require_module
from .recorded_calls import ModuleCall, calls_recorded, split_input


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivation(Result):
    """What one call of a module returned: statistics of its first floating-point output, counts of all.

    None where there is no such output. A NaN or Inf propagates into the statistics as IEEE arithmetic has it.
    """

    layer: str
    """Qualified name of the module; the root's is empty."""
    type: str
    call: int
    """0-based: a module may be called several times."""
    is_leaf: bool
    """Whether the module has no children."""
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    duration_s: float
    """Wall-clock, children included; the first forward includes one-off work of torch."""
    rms: float | None
    mean: float | None
    std: float | None
    """Population standard deviation (divisor n)."""
    max_abs: float | None
    zero_fraction: float | None
    """Elements that are exactly 0, as a fraction (0-1)."""
    nan_count: int
    inf_count: int
    input_is_finite: bool
    """No input of this call had NaN or Inf."""

    @property
    def is_finite(self) -> bool:
        """Neither NaN nor Inf in any output."""
        return not self.nan_count and not self.inf_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardReport(Result):
    """One forward: its output, and the activations in the order of the calls."""

    _derived = ("ok",)

    model: str
    output: Any = field(repr=False, metadata=NOT_IN_JSON)
    """What the model returned, with its graph: go on with it as usual."""
    duration_s: float
    """Of the whole forward, our own measuring excluded."""
    layers: tuple[LayerActivation, ...]
    """The root alone without `layer_hooks`."""
    first_nonfinite: str | None
    """Layer that first made NaN or Inf of finite inputs, the innermost one; None when none did."""
    parameters_are_bad: bool
    """Whether that layer holds NaN or Inf in its own parameters."""
    note: str = ""

    @property
    def ok(self) -> bool:
        """No layer's output has NaN or Inf."""
        return all(layer.is_finite for layer in self.layers)

    def __str__(self) -> str:
        """A verdict, and a row for each call."""
        lines = [
            f"forward of {self.model}: {'ok' if self.ok else 'NOT OK'}, {tables.duration(self.duration_s)}"
        ]
        if not self.ok:
            first = self.first_nonfinite
            where = (
                "the model's own inputs are not finite"
                if first is None
                else f"first in {tables.root_or(first)}"
            )
            weights = ", whose own parameters hold NaN or Inf" if self.parameters_are_bad else ""
            lines.append(f"  NaN or Inf: {where}{weights}")
        if self.note:
            lines.append(f"  {self.note}")
        header = ("layer", "type", "output", "rms", "mean", "std", "max", "zero", "NaN", "Inf", "time")
        return "\n".join([*lines, *tables.table(header, [_row(layer) for layer in self.layers], left=3)])


def debug_forward_pass(model: nn.Module, inputs: Any, layer_hooks: bool = True) -> ForwardReport:
    """Run `model` on `inputs` and measure what every layer returns. Waits for the device at each layer.

    Hooks are on the modules for this one call. A compiled model runs eagerly in it. An exception of the
    forward passes through, with a note that names the layer.

    Args:
        model: the model; wrappers such as DistributedDataParallel are called as they are.
        inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        layer_hooks: False measures the model's output alone.

    Raises:
        ValueError: it is no module, or a lazy one without parameters as yet.
    """
    root = require_module(model)
    args, kwargs = split_input(inputs)
    with calls_recorded(root, measure=_Measured, layers=layer_hooks) as recorder:
        began_ns = time.perf_counter_ns()
        try:
            output = model(*args, **kwargs)
        except Exception as error:
            where = recorder.path[-1] if recorder.path else ""
            error.add_note(f"raised in {tables.root_or(where)} during debug_forward_pass")
            raise
        elapsed_s = (time.perf_counter_ns() - began_ns) / 1e9
    calls = recorder.calls
    origin = _origin(calls)
    return ForwardReport(
        model=type(root).__name__,
        output=output,
        duration_s=next((call.duration_s for call in calls if not call.name), elapsed_s),
        layers=_activations(calls),
        first_nonfinite=None if origin is None else origin.name,
        parameters_are_bad=origin is not None and _has_bad_parameters(origin.module),
        note=f"{recorder.dropped:,} calls were not recorded" if recorder.dropped else "",
    )


class _Measured:
    """Statistics of the floating-point tensors of one call's input or output."""

    __slots__ = ("first", "inf_count", "nan_count")

    def __init__(self, tensors: list[Tensor]) -> None:
        found = [tensor for tensor in tensors if _is_measurable(tensor)]
        self.first: ActivationStatistics | None = None
        self.nan_count = self.inf_count = 0
        if not found:
            return
        with torch.no_grad(), torch.autocast(found[0].device.type, enabled=False):
            self.first = activation_statistics(found[:1])
            others = tensor_statistics(found)
        self.nan_count, self.inf_count = int(others.nan_count.sum()), int(others.inf_count.sum())

    @property
    def is_finite(self) -> bool:
        return not self.nan_count and not self.inf_count

    def value(self, name: str) -> float | None:
        """A statistic of the first tensor; None without one."""
        if self.first is None or self.first.missing[0]:
            return None
        return float(getattr(self.first, name)[0])


def _is_measurable(tensor: Tensor) -> bool:
    is_number = tensor.is_floating_point() or tensor.is_complex()
    is_wrapped = torch_modes.is_functorch_wrapped(tensor)
    return is_number and not tensor.is_nested and not is_wrapped and tensor.device.type != "meta"


def _activations(calls: list[ModuleCall]) -> tuple[LayerActivation, ...]:
    seen: dict[str, int] = {}
    layers = []
    for call in calls:
        number = seen[call.name] = seen.get(call.name, -1) + 1
        output: _Measured = call.outputs
        layers.append(
            LayerActivation(
                layer=call.name,
                type=call.type,
                call=number,
                is_leaf=next(call.module.children(), None) is None,
                input_shapes=call.input_shapes,
                output_shapes=call.output_shapes,
                duration_s=call.duration_s,
                rms=output.value("rms"),
                mean=output.value("mean"),
                std=output.value("std"),
                max_abs=output.value("max_abs"),
                zero_fraction=output.value("zero_fraction"),
                nan_count=output.nan_count,
                inf_count=output.inf_count,
                input_is_finite=call.inputs.is_finite,
            )
        )
    return tuple(layers)


def _origin(calls: list[ModuleCall]) -> ModuleCall | None:
    """The call that first made NaN or Inf of finite inputs: the first to end, so the innermost one."""
    made = [call for call in calls if call.inputs.is_finite and not call.outputs.is_finite]
    return min(made, key=lambda call: call.ended, default=None)


def _has_bad_parameters(module: nn.Module) -> bool:
    statistics = tensor_statistics([parameter.detach() for parameter in module.parameters(recurse=False)])
    return bool(statistics.nan_count.any() or statistics.inf_count.any())


def _row(layer: LayerActivation) -> tuple[str, ...]:
    depth = layer.layer.count(".") + 1 if layer.layer else 0
    name = layer.layer.rpartition(".")[2] or "(root)"
    again = f" #{layer.call}" if layer.call else ""
    zero = "-" if layer.zero_fraction is None else f"{layer.zero_fraction:.1%}"
    values = [tables.number(value) for value in (layer.rms, layer.mean, layer.std, layer.max_abs)]
    return (
        "  " * depth + name + again,
        layer.type,
        tables.shapes(layer.output_shapes),
        *values,
        zero,
        str(layer.nan_count),
        str(layer.inf_count),
        tables.duration(layer.duration_s),
    )
