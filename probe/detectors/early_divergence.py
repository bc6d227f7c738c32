"""Early divergence: within its first steps the loss rises a hundredfold, and does not come back.

`divergence.py` needs a history; here the first loss is all there is to compare with. So three things must
come together: the loss is far above it and stays there for some steps, the gradients have grown with it, and
so have the weights. A value loss that begins near 0 and jumps with the first reward leaves the weights as
they were.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from .base import Finding, Floats, Observation, ObservationBatch
from .step_sizes import StepSizes

WATCHED: Final = 12
"""Losses, the first one among them, within which it must have risen."""
FACTOR: Final = 100.0
"""Times the first loss."""
BACK: Final = 10.0
"""Below so many times the first loss it has come back."""
LASTING: Final = 5
"""Losses in a row that have not come back."""
PATIENCE: Final = 24
"""Losses after the rise during which the weights may be measured."""
GRADIENT_GROWTH: Final = 4.0
WEIGHT_GROWTH: Final = 1.2


class EarlyDivergenceDetector:
    """Emits `loss_divergence`, a warning, from the first steps on for as long as the loss stays up."""

    def __init__(self) -> None:
        self._step = -1
        self._reset()

    def _reset(self) -> None:
        self._count = self._risen = 0
        self._first: tuple[int, float] = (0, math.nan)
        self._rise: tuple[int, float] = (0, math.nan)
        self._first_gradient = self._first_weights = self._weights = math.nan
        self._highest_gradient = 0.0
        """Since the rise."""
        self._is_found = False
        self._sizes = StepSizes(first=1)

    @property
    def _is_over(self) -> bool:
        """Whether nothing can be found any more."""
        return self._count >= WATCHED and not self._risen and not self._is_found

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding while the loss is far above its first value."""
        if observation.step < self._step:
            self._reset()
        self._step = observation.step
        loss = observation.loss
        if loss is not None and math.isfinite(loss) and not self._is_over:
            relative = float(loss) / self._sizes.growth(observation.input_elements)
            self._learn(observation.step, relative, observation.total_grad_norm, observation.parameter_norm)
        return [self._finding(float(loss))] if self._is_found and loss is not None else []

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Pass steps of a run that is past its first ones, or that has no loss."""
        if batch.steps[0] < self._step or self._is_found:
            return False
        if not self._is_over and any(loss is not None for loss in batch.losses):
            return False
        self._step = batch.steps[-1]
        return True

    def _learn(self, step: int, loss: float, gradient: float | None, norms: Floats | None) -> None:
        self._count += 1
        if norms is not None:
            with np.errstate(over="ignore"):
                self._weights = float(np.sqrt(np.square(norms).sum()))
        if self._count == 1:
            self._first, self._first_weights = (step, loss), self._weights
            self._first_gradient = math.nan if gradient is None else gradient
            return
        base = self._first[1]
        if not base > 0.0:
            return
        if loss < BACK * base:
            self._risen, self._is_found = 0, False
            self._highest_gradient = 0.0
        elif self._risen or (loss > FACTOR * base and self._count <= WATCHED):
            self._follow(step, loss, gradient)

    def _follow(self, step: int, loss: float, gradient: float | None) -> None:
        """The loss is up: does it stay there, and has everything else grown too?"""
        if not self._risen:
            self._rise = (step, loss)
        self._risen += 1
        if gradient is not None and math.isfinite(gradient):
            self._highest_gradient = max(self._highest_gradient, gradient)
        if self._risen < LASTING or self._is_found:
            return
        has_grown = self._weights > WEIGHT_GROWTH * self._first_weights
        # The highest: what has run into the dead part of a ReLU has none any more.
        self._is_found = has_grown and self._highest_gradient > GRADIENT_GROWTH * self._first_gradient
        if not self._is_found and self._risen > PATIENCE:
            self._risen = 0

    def _finding(self, loss: float) -> Finding:
        (first_step, first), (step, rise) = self._first, self._rise
        return Finding(
            kind="loss_divergence",
            severity="warning",
            subject="loss",
            message=f"Loss {first:.4g} at step {first_step} was {rise:.4g} at step {step} and does not come "
            f"back ({loss:.4g} at step {self._step}): gradients and weights have grown with it, so the "
            "updates are too large",
            value=loss,
            threshold=FACTOR * first,
            baseline={"first": first, "step": float(first_step)},
            neighbours=(self._first, self._rise),
        )
