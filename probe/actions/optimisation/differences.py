"""How far the numbers of a step in one mode are from those without, and how far they may be. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..analysis.call_results import Result
from .modes import WITH_AMP, OptimizationMode

EXACT: Final = (1e-4, 1e-4, 1e-3)
"""Most that output, loss and gradients may differ where the precision is the same: sums in another order, a
thousand times float32's 1.2e-7 and more."""
HALF: Final = (0.05, 0.02, 0.1)
"""The same where bfloat16 or float16 is computed in: 6 to 25 times bfloat16's precision of 0.004."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Result):
    """Relative differences: the L2 norm of the difference over that of the plain step's values.

    Where the plain values are all 0 it is the difference itself; NaN or Inf on one side alone is Inf.
    """

    output: float | None
    """None where an output has no floating-point tensor, or another shape."""
    loss: float
    gradient: float
    """Over all gradients as one vector."""
    worst_gradient: float
    """Of the parameter whose gradient differs most of those that hold 1 % of the norm or more."""
    worst_parameter: str | None

    def within(self, limits: tuple[float, float, float]) -> bool:
        """Whether output, loss and gradients are."""
        found = (self.output or 0.0, self.loss, self.gradient)
        return all(value <= limit for value, limit in zip(found, limits, strict=True))


def limits_of(mode: OptimizationMode, dtypes: set[torch.dtype]) -> tuple[float, float, float]:
    """Return how far output, loss and gradients may be from those of mode `none`.

    Args:
        mode: the mode.
        dtypes: of the parameters.
    """
    is_half = mode in WITH_AMP or bool(dtypes & {torch.float16, torch.bfloat16})
    return HALF if is_half else EXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class StepValues:
    """What one step has computed."""

    outputs: Sequence[Tensor]
    """Floating-point tensors; of a batch in parts, joined."""
    loss: float
    gradients: Mapping[str, Tensor]
    """By the parameter's name, unscaled; a parameter without a gradient is not in it."""


def compare(plain: StepValues, own: StepValues) -> Difference:
    """Return how far a step's values are from the plain step's, computed in float64."""
    output = None
    shapes = [tuple(one.shape) for one in plain.outputs]
    if shapes and shapes == [tuple(one.shape) for one in own.outputs]:
        output = _relative(list(zip(plain.outputs, own.outputs, strict=True)))
    names = sorted(plain.gradients.keys() | own.gradients.keys())
    pairs = {name: _pair(plain.gradients.get(name), own.gradients.get(name)) for name in names}
    total = math.sqrt(sum(_square(one) for one, _ in pairs.values()))
    worst: tuple[float, str | None] = (0.0, None)
    for name, pair in pairs.items():
        if math.sqrt(_square(pair[0])) >= 0.01 * total and (value := _relative([pair])) > worst[0]:
            worst = (value, name)
    return Difference(
        output=output,
        loss=_of_numbers(plain.loss, own.loss),
        gradient=_relative(list(pairs.values())),
        worst_gradient=worst[0],
        worst_parameter=worst[1],
    )


def _pair(plain: Tensor | None, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """A gradient that one side does not have counts as 0."""
    known = plain if plain is not None else own
    assert known is not None
    zero = torch.zeros_like(known)
    return plain if plain is not None else zero, own if own is not None else zero


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())


def _relative(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    difference = math.sqrt(sum(_square(own.double() - plain.double()) for plain, own in pairs))
    norm = math.sqrt(sum(_square(plain) for plain, _ in pairs))
    if math.isfinite(difference) and math.isfinite(norm):
        return difference / norm if norm else difference
    same = all(torch.equal(plain.nan_to_num(), own.nan_to_num()) for plain, own in pairs)
    return 0.0 if same else math.inf


def _of_numbers(plain: float, own: float) -> float:
    if math.isfinite(plain) and math.isfinite(own):
        return abs(own - plain) / abs(plain) if plain else abs(own)
    return 0.0 if plain == own or (math.isnan(plain) and math.isnan(own)) else math.inf
