"""Measures the floating-point tensors that a model is called with, at the steps that sample activations.

Small ones also at those that measure parameter norms.

Used by the step measures on the training thread, before the forward. Only tensors on the CPU: to read one on
a device would be to wait for it.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..compat.weak_tables import WeakTable
from ..detectors.sample import InputSample
from ..guard import outcome_of
from .statistics.statistics import MeasuringPlan, TensorStatistics, tensor_statistics

_MOST: Final = 16
"""Tensors that are looked at of one call."""
_DEPTH: Final = 2
"""Containers within containers that are looked into."""


def measure_inputs(
    called: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, most_elements: float = math.inf
) -> InputSample | None:
    """Measure what a call is about to get; None where it gets no such tensor.

    Args:
        called: the module that is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        most_elements: with more of them in a tensor nothing is measured.
    """
    found = measured_tensors(called, args, kwargs)
    if not found or max(tensor.numel() for tensor in found.values()) > most_elements:
        return None
    names = tuple(found)
    measured = _measured([found[name].detach() for name in names])
    return InputSample(
        names=names,
        max_abs=measured.max_abs,
        mean=measured.mean,
        std=measured.std,
        nan_count=measured.nan_count,
        inf_count=measured.inf_count,
    )


def measured_tensors(
    called: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors of a call that are measured, by name: the first ones on the CPU."""
    named = zip(argument_names(called, len(args)), args, strict=True)
    return dict(itertools.islice(_named_tensors([*named, *kwargs.items()], _DEPTH), _MOST))


def _measured(tensors: list[Tensor]) -> TensorStatistics:
    if not all(map(_is_plain, tensors)):
        return tensor_statistics(tensors)
    plan = _plans.get(len(tensors))
    if plan is None:
        plan = _plans[len(tensors)] = MeasuringPlan(tensors)
    return tensor_statistics(tensors, plan)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a plan that other tensors were measured by is for this one too."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or not tensor.is_contiguous():
        return False
    return not (tensor.is_neg() or tensor.is_conj())


_plans: dict[int, MeasuringPlan] = {}
"""How so many tensors are measured, with the memory for it: to make one takes twice as long as to measure."""


def argument_names(called: nn.Module, count: int) -> list[str]:
    """What the forward calls its positional arguments; ``args[0]`` where it takes any number."""
    # An object of the script's may stand for it, whose own code may raise.
    plain = outcome_of(_plain_names, called.forward)[0] or []
    return plain[:count] + [f"args[{index}]" for index in range(len(plain), count)]


_names_of: WeakTable[Any, list[str]] = WeakTable()
"""Names of the arguments of methods, by function: to read a signature takes 20 us."""


def _plain_names(forward: Callable[..., Any]) -> list[str]:
    function = getattr(forward, "__func__", None)
    known = None if function is None else _names_of.get(function)
    if known is not None:
        return known
    parameters = inspect.signature(forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if isinstance(function, FunctionType):
        _names_of[function] = names
    return names


def _named_tensors(items: list[tuple[str, Any]], depth: int) -> Iterator[tuple[str, Tensor]]:
    for name, value in items:
        if isinstance(value, Tensor):
            if value.is_floating_point() and value.is_cpu and value.numel():
                yield name, value
        elif depth and isinstance(value, Mapping):
            yield from _named_tensors([(f"{name}[{key!r}]", item) for key, item in value.items()], depth - 1)
        elif depth and isinstance(value, list | tuple):
            inner = [(f"{name}[{index}]", item) for index, item in enumerate(value[:_MOST])]
            yield from _named_tensors(inner, depth - 1)
