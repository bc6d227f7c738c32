"""Numbers of a step that are still on their way from a device when the step ends; read one step later.

Made on the training thread by the training loop and by clipping, kept in `MeasuredStep.late`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from torch import Tensor

from ..compat.host_copy import HostCopy
from ..measure.statistics.statistics import PendingStatistics
from .losses import StepLoss


class LateClipping:
    """What one of torch's clip functions was given and has returned, or what it has left."""

    def __init__(self, total_norm: object, max_norm: object) -> None:
        self._clipped, self._limit = _start(total_norm), _start(max_norm)
        self.after: PendingStatistics | None = None
        """Gradients after clipping, where they have to be measured."""

    @property
    def says_what_is_left(self) -> bool:
        """Whether the norm after clipping follows from what the function returned."""
        return self._clipped is not None and self._limit is not None

    def forget(self) -> None:
        """The gradients were clipped again: what is left has to be measured."""
        self._clipped = None

    def read(self) -> tuple[float, float] | None:
        """The norm that was clipped by and its limit; None where either is not known."""
        if self._clipped is None or self._limit is None:
            return None
        return self._clipped(), self._limit()


class LateValues(msgspec.Struct):
    """What a step waits for."""

    gradients: PendingStatistics
    loss: Callable[[], StepLoss]
    parameters: PendingStatistics | None = None
    """Where their norms are due."""
    clipping: LateClipping | None = None


def _start(value: object) -> Callable[[], float] | None:
    """Start to bring one number to the host; None for what is none."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            return None
        copy = HostCopy(value)
        return lambda: float(copy.read())
    known = float(value) if isinstance(value, int | float) else None
    return None if known is None else lambda: known
