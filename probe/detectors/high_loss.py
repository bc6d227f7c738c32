"""A loss far above all it has been: it has jumped for good, or grows steadily on its way to overflow.

What a spike is measured by (`loss.py`) is not known in the first steps and follows a growth that is slow;
a divergence (`divergence.py`) takes a hundred steps. Here the level is the highest loss so far and the unit
is the scatter of losses, so that they may be 0 or negative. Growth is judged by `steady_growth.py`.
"""

from __future__ import annotations

import math
from collections import deque
from copy import copy
from typing import Final

import numpy as np

from .base import Finding, Observation, ObservationBatch
from .loss import ROUNDING, LossSpikeDetector
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .steady_growth import Growth, SteadyGrowth
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
LEAST_SHARE: Final = 0.05
"""Of the level: the scatter counts as at least so much."""
LARGER: Final = 1.5
"""Times the largest step so far: what is computed of so many more elements is something else."""
ADOPTED: Final = 64
"""Findings in a row after which the new level is taken for normal."""


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
        self._growth = SteadyGrowth()
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
            return self._learn(step, loss, gradient, size)
        jump = self._jump()
        limit = self._highest + jump
        if loss > limit and (self._above or loss - self._newest[-1][1] > max(jump, self._step_before())):
            return self._stays(step, loss, limit)
        self._above.clear()
        return self._learn(step, loss, gradient, size)

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

    def _learn(self, step: int, loss: float, gradient: float | None, size: int) -> Finding | None:
        """Take a loss that has not jumped; it may be one of a steady growth."""
        self._highest = max(self._highest, loss)
        self._largest = max(self._largest, size)
        self._recent.append(loss)
        self._newest.append((step, loss))
        self._count += 1
        growth = self._growth.add(step, loss, gradient)
        if growth is None:
            return None
        self._message = (
            f"Loss {growth.level:.4g} at step {step} has grown steadily since step {growth.step} "
            f"({growth.start:.4g}), by more and more{_in_percent(growth, step)}: it is on its way to overflow"
        )
        return self._find(step, loss, growth.limit)

    def _jump(self) -> float:
        """How far above the highest loss one must be."""
        recent = np.array(self._recent)
        scatter = 1.4826 * float(median_of(np.abs(np.diff(recent)))) / math.sqrt(2.0)
        level = abs(float(median_of(recent)))
        if level == scatter == 0.0:
            return math.inf
        if recent.min() < 0.0:
            # What crosses 0 has no level but its own reach; noise of a loss that is 0 has none.
            level = float(np.abs(recent).max())
            if level < ROUNDING:
                return math.inf
        return max(JUMP * max(scatter, LEAST_SHARE * level), math.ulp(self._highest))

    def _step_before(self) -> float:
        """How much a loss may rise where it comes step by step: that is growth, no jump."""
        return ABRUPT * abs(self._newest[-1][1] - self._newest[-2][1])

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


def _in_percent(growth: Growth, step: int) -> str:
    """How fast that is; empty where the loss began at 0 or below."""
    if not growth.start > 0.0:
        return ""
    rate = (growth.level / growth.start) ** (1.0 / (step - growth.step)) - 1.0
    return f" ({100.0 * rate:.2g} % per step)"
