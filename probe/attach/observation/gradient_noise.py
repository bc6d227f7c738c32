"""The gradient noise scale of a run, from the norms of gradients of two batch sizes. Numbers only.

Source: McCandlish, Kaplan, Amodei et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1.
"""

from __future__ import annotations

import math
from typing import Final

_DECAY: Final = 0.95
"""Of the running averages: some 20 estimates, for a single one is mostly noise."""
_LEAST_ESTIMATES: Final = 5
NO_SECOND_SIZE: Final = (
    "the noise scale needs gradients of two batch sizes: accumulate over micro-batches, train on several "
    "ranks or switch gradient_cosine on"
)
TOO_FEW: Final = f"fewer than {_LEAST_ESTIMATES} steps have been measured"
NO_SIGNAL: Final = "the mean gradient cannot be distinguished from the noise"


class GradientNoise:
    """Running estimate of B_simple = tr(S) / |G|^2, the batch size at which noise and signal are equal.

    S is the covariance of one sample's gradient, G the true gradient. Both are estimated without bias from
    each step's pair of norms and averaged exponentially; their ratio is taken of the averages.
    """

    def __init__(self) -> None:
        self._signal = self._noise = 0.0
        self._count = 0

    def note(self, *, small_norm: float, small_batch: float, big_norm: float, big_batch: float) -> None:
        """Take the norms of one step's gradients of the mean loss over a small and over a big batch.

        The small batch is part of the big one: one of several micro-batches, or one rank's share. Equations
        A.2 and A.3. Ignored where a norm is not finite or the sizes do not differ.
        """
        if not (0 < small_batch < big_batch and math.isfinite(small_norm) and math.isfinite(big_norm)):
            return
        small, big = small_norm**2, big_norm**2
        signal = (big_batch * big - small_batch * small) / (big_batch - small_batch)
        noise = (small - big) / (1 / small_batch - 1 / big_batch)
        self._average(signal, noise)

    def note_accumulation(
        self, *, first_norm: float, total_norm: float, micro_steps: int, divisor: float, samples: float
    ) -> None:
        """Take a step with gradient accumulation, whose first backward alone left a gradient of `first_norm`.

        Args:
            first_norm: L2 norm of the accumulated gradient after the first of the micro-steps.
            total_norm: the same after the last of them.
            micro_steps: how many there were, of equal size.
            divisor: what the script divides each micro-step's loss by (1: nothing).
            samples: in all micro-steps together; 0 where unknown, then a micro-batch counts as one sample.
        """
        if micro_steps < 2:
            return
        self.note(
            small_norm=first_norm * divisor,
            small_batch=(samples or micro_steps) / micro_steps,
            big_norm=total_norm * divisor / micro_steps,
            big_batch=samples or micro_steps,
        )

    def note_successive(self, *, norm: float, previous_norm: float, dot: float, batch: float) -> None:
        """Take the gradients of two successive steps: where there is but one batch size.

        Their product estimates |G|^2, for their batches are independent; what their squared norms have beyond
        that is the noise of one batch. Biased upwards by what the update has turned the gradient meanwhile.
        """
        square = (norm**2 + previous_norm**2) / 2
        if batch > 0 and math.isfinite(square) and math.isfinite(dot):
            self._average(dot, batch * (square - dot))

    @property
    def scale(self) -> float | None:
        """B_simple in samples; None where it is not known, see `reason`."""
        return None if self.reason is not None else max(self._noise, 0.0) / self._signal

    @property
    def reason(self) -> str | None:
        """Why there is no estimate; None when there is one."""
        if self._count == 0:
            return NO_SECOND_SIZE
        if self._count < _LEAST_ESTIMATES:
            return TOO_FEW
        return NO_SIGNAL if self._signal <= 0 else None

    def _average(self, signal: float, noise: float) -> None:
        # The first values weigh as much as the later: Adam's correction, which the ratio does not need.
        self._count += 1
        weight = max(1 - _DECAY, 1 / self._count)
        self._signal += weight * (signal - self._signal)
        self._noise += weight * (noise - self._noise)
