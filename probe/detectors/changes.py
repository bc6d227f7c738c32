"""What the training itself changed shortly before an event: its learning rate, what it trains, the level.

Asked by `why.py` only when an event begins; numpy only, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from .base import Floats

What = Literal["level", "mode", "batch size", "phase", "learning rate", "weights"]
_RATE_FACTOR: Final = 3.0
"""A schedule's warmup takes smaller steps from one update to the next."""
_LEAST_EQUAL: Final = 8
"""Steps that must have trained the same before other parameters get gradients: experts change at each."""


class Change(NamedTuple):
    """Something that the script or a person has set otherwise from a step on."""

    what: What
    step: int
    text: str
    """Such as "0.0002 -> 0.3"."""

    def __str__(self) -> str:
        return f"{self.what} {self.text} at step {self.step}"


def rate_jump(steps: Sequence[int], rates: Floats, first: int, *, of: str = "") -> Change | None:
    """The newest jump of a learning rate, above 0 before, at `first` or after it; `of` is put behind it."""
    before, after = rates[:-1], rates[1:]
    with np.errstate(all="ignore"):
        jumped = (before > 0.0) & (after > _RATE_FACTOR * before)
    at = np.flatnonzero(jumped) + 1
    at = at[at >= first]
    if not len(at):
        return None
    index = int(at[-1])
    return Change("learning rate", steps[index], f"{rates[index - 1]:.4g} -> {rates[index]:.4g}{of}")


def phase_change(steps: Sequence[int], has_gradient: np.ndarray, first: int) -> Change | None:
    """The newest step from `first` on at which other layers get gradients than in all steps before it.

    Args:
        steps: numbers of successive steps.
        has_gradient: (steps, layers).
        first: index of the first step to look at.
    """
    differs = (has_gradient[1:] != has_gradient[:-1]).any(axis=1)
    at = np.flatnonzero(differs) + 1
    for index in at[::-1].tolist():
        before = has_gradient[max(0, index - _LEAST_EQUAL) : index]
        # Where nothing has a gradient, the step is no phase of its own.
        if index < first or len(before) < _LEAST_EQUAL or not has_gradient[index].any():
            continue
        if (before == before[0]).all() and before[0].any():
            counts = f"{int(before[0].sum())} -> {int(has_gradient[index].sum())}"
            return Change("phase", steps[index], f"(layers with gradients: {counts})")
    return None


def size_change(steps: Sequence[int], sizes: Sequence[int | None]) -> Change | None:
    """The first step of another batch size, after at least three steps of one size."""
    for index in range(3, len(sizes)):
        before, size = set(sizes[:index]), sizes[index]
        if len(before) == 1 and None not in before and size is not None and size not in before:
            return Change("batch size", steps[index], f"{sizes[0]} -> {size}")
    return None
