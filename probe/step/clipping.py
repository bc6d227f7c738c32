"""What gradient clipping does to the norm, and clipping that reuses the norm that the probe has anyway.

Used by the step tracker on the training thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from ..compat.torch_foreach import foreach_mul_
from ..measure.statistics.statistics import PendingStatistics, TensorStatistics
from .late_values import LateClipping
from .open_step import Clipping, OpenStep

_EPSILON: Final = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to the norm that it divides by."""
_SAME_NORM: Final = 1e-4
"""Relative difference up to which the norm that torch clipped by is that of all watched gradients: torch sums
float32 squares, the probe float64 ones."""


def clip_coefficient(total_norm: float, max_norm: float) -> float:
    """Return what gradients are multiplied by, at most 1; as torch.nn.utils.clip_grad_norm_ computes it."""
    return min(max_norm / (total_norm + _EPSILON), 1.0)


def norm_after_clipping(watched: float, clipped: float, max_norm: float) -> float | None:
    """Return the global L2 norm that clipping by norm leaves; None where it cannot be known from this.

    Args:
        watched: L2 norm over the watched gradients before.
        clipped: what torch's function returned: the norm over the gradients that it was given.
        max_norm: its limit.
    """
    if not math.isfinite(watched):
        # torch multiplies by 0 or NaN: what was Inf or NaN is NaN.
        return None if math.isfinite(clipped) else math.nan
    if not abs(watched - clipped) <= _SAME_NORM * watched:
        return None
    return watched * clip_coefficient(watched, max_norm)


def late_clipping_scalars(before: float | None, clipping: LateClipping | None) -> dict[str, float]:
    """Return the same of clipping whose norms were on their way; nothing where they do not say what was left.

    Args:
        before: L2 norm over the watched gradients before.
        clipping: what was done to them, if anything.
    """
    if clipping is None or before is None:
        return {}
    after = None
    if clipping.after is not None:
        after = clipping.after.read().total_norm
    elif (norms := clipping.read()) is not None:
        after = norm_after_clipping(before, *norms)
    return {} if after is None else clipping_scalars(before, after)


def clipping_scalars(before: float, after: float) -> dict[str, float]:
    """Return what a frame says of clipping, under the names of `wire.SCALARS`."""
    return {"grad_norm_clipped": after, "clip_fired": float(after < before * (1 - _EPSILON))}


def clip_by_norm(gradients: Sequence[Tensor], *, total_norm: float, max_norm: float) -> None:
    """Multiply gradients, in place, by what brings their norm down to `max_norm`, bit by bit as torch does.

    Nothing happens where the norm is below the limit already, or not finite.
    """
    coefficient = clip_coefficient(total_norm, max_norm)
    if not coefficient < 1.0:
        return
    by_device: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    with torch.no_grad():
        for device, group in by_device.items():
            foreach_mul_(group, torch.tensor(coefficient, device=device))


def note_clipping(opened: OpenStep, total_norm: object, max_norm: object) -> None:
    """Note what one of torch's clip functions has left of an open step's gradients.

    Args:
        opened: the step, measured before.
        total_norm: what the function returned.
        max_norm: its limit, where it clips by norm.
    """
    if isinstance(opened.measured, PendingStatistics):
        if isinstance(opened.clipping, LateClipping):
            opened.clipping.forget()
        else:
            opened.clipping = LateClipping(total_norm, max_norm)
        return
    before = None if opened.measured is None else opened.measured.total_norm
    if before is None:
        return
    known = isinstance(total_norm, Tensor | float) and isinstance(max_norm, int | float | Tensor)
    after = None
    if known and opened.clipping is None:
        after = norm_after_clipping(before, float(total_norm), float(max_norm))  # type: ignore[arg-type]
    opened.clipping = Clipping(before, after)


def clip_open_step(opened: OpenStep, parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor | None:
    """Clip by the norm that an open step was measured with; returns it, or None where there is none."""
    measured = opened.measured
    before = measured.total_norm if isinstance(measured, TensorStatistics) else None
    if before is None:
        return None
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if isinstance(measured, TensorStatistics) and not measured.is_finite:
        # Clipping would spread what is not finite.
        opened.clipping = Clipping(before, before)
    else:
        clip_by_norm(gradients, total_norm=before, max_norm=max_norm)
        opened.clipping = Clipping(before, before * clip_coefficient(before, max_norm))
    return torch.tensor(before, device=gradients[0].device)
