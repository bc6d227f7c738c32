"""Loss divergence: a loss that leaves the region it was in and goes on, upwards, or below zero without end.

Many healthy losses rise: those of a GAN's halves, of policies, of annealed terms, after every restart. So
three things must come together over at least a hundred steps: the loss has lost more than it ever won, or
has fallen ever faster to where no error can be; the gradients have grown with it; and so have the weights.
A short rise is a spike (`loss.py`). A step larger than the first ones has its loss divided by that.
"""

from __future__ import annotations

import math
from collections import deque
from copy import copy
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from .base import Finding, Floats, Observation, ObservationBatch
from .nonfinite import NEIGHBOURS
from .step_sizes import StepSizes

BLOCK: Final = 16
"""Losses whose median is judged."""
KEPT: Final = 64
"""Blocks that are kept."""
MIN_BLOCKS: Final = 6
"""Blocks since the best one, or since the beginning."""
RISING_PAIRS: Final = 0.85
"""Of all pairs of these blocks, as many have the later one further away: chance gives 0.5."""
COMPARABLE: Final = 2.0
"""Steps that are more times as large as those of the best block are not compared with it: a return may grow
with the square of an episode's moves."""
LOST_SHARE: Final = 2.0
"""A diverged loss has risen by this many times what it had fallen ..."""
NOISE_MADS: Final = 10.0
"""... and by this many MADs of single losses around the best block."""
NEAR_MADS: Final = 2.0
"""A block no more of these above the best is as low."""
GRADIENT_GROWTH: Final = 4.0
WEIGHT_GROWTH: Final = 1.5
ACCELERATION: Final = 1.5
"""A loss that falls without end falls this many times as far in each third of the time as before."""
BELOW_ZERO: Final = 2.0
"""It lies as many times further below zero than it began above or below it."""


class _Block(NamedTuple):
    step: int
    loss: float
    noise: float
    """MAD of its losses."""
    gradient: float
    """Median of the logarithm of the global gradient norm; NaN where it is not known."""
    weights: float
    """Newest global parameter norm; NaN where it is not known."""
    size: float
    """How many times as large its last step is as the first ones."""


class LossDivergenceDetector:
    """Emits `loss_divergence`, a warning, at every step of such a stretch."""

    def __init__(self) -> None:
        self._step = -1
        self._reset()

    def _reset(self) -> None:
        self._losses: list[float] = []
        self._gradients: list[float] = []
        self._weights = math.nan
        self._sizes, self._size = StepSizes(), 1.0
        self._blocks: deque[_Block] = deque(maxlen=KEPT)
        self._first: _Block | None = None
        self._best: _Block | None = None
        self._count = 0
        self._recent: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._standing: Finding | None = None

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding while the loss diverges."""
        if observation.step < self._step:
            self._reset()
        self._step = observation.step
        norm = observation.total_grad_norm
        self._learn_weights(observation.parameter_norm)
        if observation.loss is not None and math.isfinite(observation.loss):
            self._size = self._sizes.growth(observation.input_elements)
            self._learn(observation.step, float(observation.loss) / self._size, norm)
        return [] if self._standing is None else [self._standing]

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn steps during which nothing diverges."""
        if batch.steps[0] < self._step or self._standing is not None:
            return False
        before = self._losses.copy(), self._gradients.copy(), self._blocks.copy(), self._recent.copy()
        single = self._weights, self._first, self._best, self._count, copy(self._sizes)
        sizes = batch.input_elements or [0] * len(batch)
        columns = zip(
            batch.steps, batch.losses, batch.total_grad_norms, batch.parameter_norms, sizes, strict=True
        )
        for step, loss, norm, weights, size in columns:
            self._learn_weights(weights)
            if loss is not None and math.isfinite(loss):
                self._size = self._sizes.growth(size)
                self._learn(step, float(loss) / self._size, norm)
            if self._standing is not None:
                self._losses, self._gradients, self._blocks, self._recent = before
                self._weights, self._first, self._best, self._count, self._sizes = single
                self._standing = None
                return False
        self._step = batch.steps[-1]
        return True

    def _learn_weights(self, norms: Floats | None) -> None:
        if norms is not None:
            with np.errstate(over="ignore"):
                weights = float(np.sqrt(np.square(norms).sum()))
            self._weights = weights if math.isfinite(weights) else self._weights

    def _learn(self, step: int, loss: float, norm: float | None) -> None:
        self._losses.append(loss)
        self._recent.append((step, loss))
        if norm is not None and 0.0 < norm < math.inf:
            self._gradients.append(math.log(norm))
        if len(self._losses) < BLOCK:
            return
        values = sorted(self._losses)
        middle = (values[BLOCK // 2 - 1] + values[BLOCK // 2]) / 2.0
        noise = sorted([abs(value - middle) for value in values])[BLOCK // 2]
        gradients = sorted(self._gradients)
        gradient = gradients[len(gradients) // 2] if gradients else math.nan
        self._losses, self._gradients = [], []
        block = _Block(step, middle, noise, gradient, self._weights, self._size)
        self._blocks.append(block)
        self._count += 1
        self._first = self._first or block
        if self._best is None or block.loss < self._best.loss:
            self._best = block
        self._standing = self._judge(block)

    def _judge(self, now: _Block) -> Finding | None:
        first, best = self._first, self._best
        assert first is not None and best is not None
        if now.loss > first.loss:
            return self._risen(now, first, best)
        if now.loss < min(0.0, -BELOW_ZERO * abs(first.loss)):
            return self._fallen(now, first)
        return None

    def _risen(self, now: _Block, first: _Block, best: _Block) -> Finding | None:
        since = self._since(best)
        rise, won = now.loss - best.loss, first.loss - best.loss
        if now.size > COMPARABLE * best.size:
            return None
        if len(since) < MIN_BLOCKS or rise <= max(LOST_SHARE * won, NOISE_MADS * best.noise):
            return None
        if _ordered_pairs([block.loss for block in since]) < RISING_PAIRS or not _grows(since[0], now):
            return None
        return self._finding(
            now,
            best,
            f"Loss {now.loss:.4g} at step {now.step}, after {best.loss:.4g} around step {best.step}: it has "
            f"risen for {now.step - best.step} steps, and the gradients and weights with it",
            threshold=best.loss + max(LOST_SHARE * won, NOISE_MADS * best.noise),
        )

    def _since(self, best: _Block) -> list[_Block]:
        """The blocks of the rise: it begins with the last one that is still as low as the best."""
        blocks = [block for block in self._blocks if block.step >= best.step]
        near = best.loss + NEAR_MADS * best.noise
        begin = max((at for at, block in enumerate(blocks) if block.loss <= near), default=0)
        return blocks[begin:]

    def _fallen(self, now: _Block, first: _Block) -> Finding | None:
        if self._count > len(self._blocks) or self._count < MIN_BLOCKS:
            return None
        losses = [block.loss for block in self._blocks]
        third = len(losses) // 3
        falls = [losses[at] - losses[at + third] for at in (0, third, len(losses) - 1 - third)]
        is_faster = all(b > ACCELERATION * a for a, b in pairwise([0.0, *falls]))
        if not is_faster or _ordered_pairs([-loss for loss in losses]) < RISING_PAIRS:
            return None
        if not _grows(first, now):
            return None
        return self._finding(
            now,
            first,
            f"Loss {now.loss:.4g} at step {now.step} falls ever faster below zero, from {first.loss:.4g} at "
            "first, and gradients and weights grow: what is minimised has no minimum (a wrong sign?)",
            threshold=min(0.0, -BELOW_ZERO * abs(first.loss)),
        )

    def _finding(self, now: _Block, before: _Block, message: str, *, threshold: float) -> Finding:
        return Finding(
            kind="loss_divergence",
            severity="warning",
            subject="loss",
            message=message,
            value=now.loss,
            threshold=threshold,
            baseline={"median": before.loss, "mad": before.noise, "step": float(before.step)},
            neighbours=tuple(self._recent),
        )


def _ordered_pairs(values: list[float]) -> float:
    """Share of pairs whose later value is larger (Kendall's tau is 2 x - 1; Biometrika 30, 1938)."""
    array = np.array(values)
    later = array[None, :] > array[:, None]
    pairs = len(values) * (len(values) - 1) / 2.0
    return float(np.triu(later, 1).sum()) / pairs


def _grows(before: _Block, now: _Block) -> bool:
    """Whether gradients and weights are known to have grown by more than they usually do."""
    if not now.gradient - before.gradient > math.log(GRADIENT_GROWTH):
        return False
    return now.weights > WEIGHT_GROWTH * before.weights
