"""A loss far above all it has been: it has jumped for good, or grows faster and faster.

What a spike is measured by (`loss.py`) is not known in the first steps and follows a growth that is slow;
a divergence (`divergence.py`) takes a hundred steps. Here the level is the highest loss so far and the unit
is the scatter of losses, so that they may be 0 or negative. One that only rises, as in a GAN, is no fault.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import Final, NamedTuple

import numpy as np

from .base import Finding, Observation, ObservationBatch
from .loss import ROUNDING, LossSpikeDetector
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .step_sizes import StepSizes

LASTING: Final = 5
"""Losses in a row that are far above."""
WARMUP: Final = 10
"""Losses that must be known."""
RECENT: Final = 32
"""Losses whose scatter from one to the next is the unit of a jump."""
JUMP: Final = 20.0
"""Times this scatter, and by the level of the recent losses, above the highest one."""
ABRUPT: Final = 4.0
"""Times what the loss has changed by in the step before."""
GROWTH: Final = 10.0
"""Times the scatter of the first half of the run, above the highest of that half ..."""
FASTER: Final = 1.5
"""... while each quarter of the run adds so many times as much as the one before, ..."""
FAST: Final = 0.1
"""... the last `RECENT` losses have so much of the rise: 0.3 % a step and more, ..."""
GRADIENT_GROWTH: Final = 4.0
"""... and the gradient has grown, where it is known."""
LEAST_SHARE: Final = 0.05
"""Of the level: the scatter counts as at least so much."""
KEPT: Final = 256
"""Losses of the whole run, evenly spread."""
EVERY: Final = 8
"""Losses between two looks at the whole run."""
LARGER: Final = 1.5
"""Times the largest step so far: what is computed of so many more elements is something else."""
ADOPTED: Final = 64
"""Findings in a row after which the new level is taken for normal."""


class _Past(NamedTuple):
    """One loss of the whole run."""

    loss: float
    gradient: float
    """Norm of the whole gradient; NaN where it is not known."""


class HighLossDetector:
    """Emits `loss_divergence`, a warning, while the loss stays far above what it was.

    Args:
        spikes: of the same losses. What it has found is not found again here.
    """

    def __init__(self, spikes: LossSpikeDetector) -> None:
        self._spikes = spikes
        self._step = -1
        self._reset()

    def _reset(self) -> None:
        self._count = self._found = self._largest = 0
        self._highest = -math.inf
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._above: list[tuple[int, float]] = []
        """Losses in a row that may be those of a jump."""
        self._all: list[_Past] = []
        self._every, self._half, self._looked = 1, math.inf, 0
        self._sizes = StepSizes()
        self._newest: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._limit = math.inf
        """Of what has been found; the loss is up as long as it is above."""
        self._message = ""

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding while the loss is far above all it has been."""
        if observation.step < self._step:
            self._reset()
        self._step = observation.step
        if observation.loss is None or not math.isfinite(observation.loss):
            return []
        loss, gradient = float(observation.loss), observation.total_grad_norm
        finding = self._judge(observation.step, loss, gradient, observation.input_elements)
        return [] if finding is None else [finding]

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn losses that are not far above all they have been; nothing of them where one may be."""
        if batch.steps[0] < self._step or self._above or self._found:
            return False
        before = {name: copy(value) for name, value in vars(self).items() if name != "_spikes"}
        elements = batch.input_elements or [0] * len(batch)
        columns = zip(batch.steps, batch.losses, batch.total_grad_norms, elements, strict=True)
        for step, loss, gradient, size in columns:
            if loss is None or not math.isfinite(loss):
                continue
            if self._judge(step, float(loss), gradient, size) is not None or self._above:
                vars(self).update(before)
                return False
        self._step = batch.steps[-1]
        return True

    def _judge(self, step: int, loss: float, gradient: float | None, size: int) -> Finding | None:
        loss /= self._sizes.growth(size)
        if self._found:
            if loss <= self._limit or self._found >= ADOPTED:
                self._reset()
            else:
                self._found += 1
                return self._finding(step, loss)
        is_larger = size > LARGER * self._largest > 0
        if self._count < WARMUP or loss <= self._highest or is_larger:
            self._above.clear()
            self._learn(step, loss, gradient, size)
            return None
        jump = self._jump()
        limit = self._highest + jump
        if loss > limit and (self._above or loss - self._newest[-1][1] > max(jump, self._step_before())):
            return self._stays(step, loss, limit)
        self._above.clear()
        bound = self._growth_limit()
        self._learn(step, loss, gradient, size)
        if bound is None or min(loss for _, loss in self._newest) <= bound:
            return None
        self._message = (
            f"Loss {loss:.4g} at step {step} grows faster and faster: in the first half of the {self._count} "
            f"steps so far it was at most {self._half:.4g}"
        )
        return self._find(step, loss, bound)

    def _stays(self, step: int, loss: float, limit: float) -> Finding | None:
        """The loss has jumped; it is found once it has stayed there, unless it was found as a spike."""
        self._above.append((step, loss))
        if len(self._above) < LASTING:
            return None
        first, rise = self._above[0]
        is_known = any(at in self._spikes.newest for at, _ in self._above)
        self._message = (
            f"Loss {rise:.4g} at step {first} does not come back ({loss:.4g} at step {step}): before, it was "
            f"{self._highest:.4g} at most, and {float(median_of(list(self._recent))):.4g} in the last steps"
        )
        self._newest.extend(self._above)
        if is_known:
            self._reset()
            return None
        return self._find(step, loss, limit)

    def _find(self, step: int, loss: float, limit: float) -> Finding:
        self._found, self._limit = 1, limit
        return self._finding(step, loss)

    def _learn(self, step: int, loss: float, gradient: float | None, size: int) -> None:
        self._highest = max(self._highest, loss)
        self._largest = max(self._largest, size)
        self._recent.append(loss)
        self._newest.append((step, loss))
        if self._count % self._every == 0:
            self._all.append(_Past(loss, math.nan if gradient is None else gradient))
            if len(self._all) >= KEPT:
                del self._all[1::2]
                self._every *= 2
        self._count += 1

    def _jump(self) -> float:
        """How far above the highest loss one must be."""
        recent = np.array(self._recent)
        scatter = 1.4826 * float(median_of(np.abs(np.diff(recent)))) / math.sqrt(2.0)
        level = abs(float(median_of(recent)))
        if recent.min() < 0.0:
            # What crosses 0 has no level but its own reach; noise of a loss that is 0 has none.
            level = float(np.abs(recent).max())
            if level < ROUNDING:
                return math.inf
        return max(JUMP * max(scatter, LEAST_SHARE * level), math.ulp(self._highest))

    def _step_before(self) -> float:
        """How much a loss may rise where it comes step by step: that is growth, no jump."""
        return ABRUPT * abs(self._newest[-1][1] - self._newest[-2][1])

    def _growth_limit(self) -> float | None:
        """How high a loss that grows may be; None where it does not grow faster and faster."""
        if self._count - self._looked < EVERY or len(self._all) < 2 * WARMUP:
            return None
        self._looked = self._count
        losses = np.array([past.loss for past in self._all])
        parts = np.array_split(losses, 4)
        _, second, third, fourth = (float(median_of(part)) for part in parts)
        if not (third > second and fourth - third > FASTER * (third - second)):
            return None
        half = np.concatenate(parts[:2])
        level, self._half = float(median_of(half)), float(half.max())
        scatter = max(1.4826 * float(median_of(np.abs(half - level))), LEAST_SHARE * abs(level))
        recent = list(self._recent)
        rise = float(median_of(recent[-LASTING:])) - float(median_of(recent[:LASTING]))
        is_fast = rise > FAST * (float(median_of(recent[-LASTING:])) - level)
        has_grown = is_fast and _growth([past.gradient for past in self._all])
        is_noise = half.min() < 0.0 and float(np.abs(half).max()) < ROUNDING
        return self._half + GROWTH * scatter if scatter > 0.0 and has_grown and not is_noise else None

    def _finding(self, step: int, loss: float) -> Finding:
        return Finding(
            kind="loss_divergence",
            severity="warning",
            subject="loss",
            message=self._message,
            value=loss,
            threshold=self._limit,
            baseline={"highest": self._highest},
            neighbours=tuple(self._newest),
        )


def _growth(gradients: Sequence[float]) -> bool:
    """Whether the newest gradients are far above those of the first half, or not known."""
    known = [value for value in gradients if math.isfinite(value)]
    if len(known) < 2 * WARMUP:
        return not known
    before = float(median_of(known[: len(known) // 2]))
    return float(median_of(known[-LASTING:])) > GRADIENT_GROWTH * before
