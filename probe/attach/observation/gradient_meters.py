"""What finished gradients say together with earlier ones: noise scale and turn, ready for a frame.

Called by the step's measures on the training thread, at the steps at which one of the two is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from ...measure.statistics.masked import MaskedValues

if TYPE_CHECKING:
    from .gradient_history import GradientHistory
    from .gradient_noise import GradientNoise


class FinishedGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of one step before the update."""

    step: int
    gradients: Sequence[Tensor | None]
    """Of all parameters, in layout order."""
    total_norm: float | None
    """L2 norm over all of them."""
    first_norm: float | None = None
    """The same after the first of several backwards, where it was measured."""
    micro_steps: int = 1
    divisor: float = 1.0
    """What the script divides each micro-step's loss by."""
    samples: int = 0
    """In all micro-steps; 0 where unknown."""


class GradientReading(msgspec.Struct, frozen=True):
    """Scalars and per-parameter values for the frame."""

    scalars: dict[str, float] = msgspec.field(default_factory=dict)
    cosine: MaskedValues | None = None


class GradientMeters:
    """Noise scale and cosine of one model's gradients; what they need is loaded at their first step."""

    def __init__(self) -> None:
        self._history: GradientHistory | None = None
        self._last_step: int | None = None

    @cached_property
    def noise(self) -> GradientNoise:
        """The noise scale; its `reason` says why there is none."""
        from .gradient_noise import GradientNoise

        return GradientNoise()

    def release(self) -> None:
        """Let go of the copy."""
        self._history = self._last_step = None

    def read(self, finished: FinishedGradients, *, has_noise: bool, has_cosine: bool) -> GradientReading:
        """Take one step's gradients; waits for the device where the cosine is due."""
        result = GradientReading()
        if has_cosine:
            result = self._compare(finished, has_noise=has_noise)
        if has_noise:
            self._note_accumulation(finished)
            if self.noise.scale is not None:
                result.scalars["gradient_noise_scale"] = self.noise.scale
        return result

    def _note_accumulation(self, finished: FinishedGradients) -> None:
        if finished.first_norm is not None and finished.total_norm is not None:
            self.noise.note_accumulation(
                first_norm=finished.first_norm,
                total_norm=finished.total_norm,
                micro_steps=finished.micro_steps,
                divisor=finished.divisor,
                samples=finished.samples,
            )

    def _compare(self, finished: FinishedGradients, *, has_noise: bool) -> GradientReading:
        from .gradient_history import GradientHistory

        self._history = self._history or GradientHistory()
        turn = self._history.compare(finished.gradients)
        follows = self._last_step is not None and finished.step == self._last_step + 1
        self._last_step = finished.step
        if turn is None:
            return GradientReading()
        if has_noise and follows and finished.micro_steps == 1:
            self.noise.note_successive(
                norm=turn.norm,
                previous_norm=turn.previous_norm,
                dot=turn.dot,
                batch=finished.samples or 1,
            )
        scalars = {} if turn.cosine is None else {"gradient_cosine": turn.cosine}
        return GradientReading(scalars, turn.by_parameter)
