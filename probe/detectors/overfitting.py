"""Overfitting: the validation loss rises for several evaluations while the training loss goes on falling."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

import numpy as np

from .base import Finding
from .convergence import Level, level_of
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .sample import Sample, Succession
from .sampled_thresholds import SampledThresholds

NAMES: Final = (
    "log/val_loss",
    "log/valid_loss",
    "log/validation_loss",
    "log/eval_loss",
    "log/val/loss",
    "log/valid/loss",
    "log/validation/loss",
    "log/eval/loss",
    "val_loss",
)
"""Scalars that are taken for a validation loss; the first one that a sample has. The last one is what the
probe finds by itself."""
LOGGED_NAMES: Final = frozenset(NAMES[:-1])
TRAINING_KEPT: Final = 64
KEPT: Final = 128
NOISE: Final = 6.0
"""The rise must be this many MADs of the change from one evaluation to the next."""
MIN_EVALUATIONS: Final = 5
MIN_FALL: Final = 0.05
"""Of the training loss, since the best evaluation."""
POOLED: Final = 16
"""Training losses that tell the level at the best evaluation, and now ..."""
MIN_POOLED: Final = 5
"""... and without which nothing is said: a single batch may be an easy one."""


class _Evaluation(NamedTuple):
    step: int
    loss: float
    training: tuple[float, ...]
    """Known training losses since the evaluation before."""


class OverfittingDetector:
    """Emits `overfitting`, a warning."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._succession = Succession()
        self._reset()

    def _reset(self) -> None:
        self._training: deque[float] = deque(maxlen=TRAINING_KEPT)
        self._evaluations: deque[_Evaluation] = deque(maxlen=KEPT)
        self._standing: list[Finding] = []

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding from the evaluation on that shows it; in between the last verdict."""
        if self._succession.begins_anew(sample):
            self._reset()
        if sample.loss is not None:
            self._training.append(sample.loss)
        loss = next((sample.scalars[name] for name in NAMES if name in sample.scalars), None)
        if loss is None or not np.isfinite(loss):
            return list(self._standing)
        self._evaluations.append(_Evaluation(sample.step, float(loss), tuple(self._training)))
        self._training.clear()
        self._standing = self._judge()
        return list(self._standing)

    def _judge(self) -> list[Finding]:
        options, evaluations = self._thresholds, list(self._evaluations)
        late = options.overfitting_evaluations
        if len(evaluations) < max(MIN_EVALUATIONS, late + 2):
            return []
        losses = np.array([evaluation.loss for evaluation in evaluations])
        # The median of three: a single lucky evaluation is no minimum.
        smooth = median_of(np.stack([losses[:-2], losses[1:-1], losses[2:]]), axis=0)
        near = int(np.argmin(smooth))
        lowest, best = float(smooth[near]), near + int(np.argmin(losses[near : near + 3]))
        if best >= len(losses) - late:
            return []
        # Second differences: a steady rise or fall is no noise. Their variance is 3 times that of the first.
        changes = np.diff(losses, 2)
        noise = float(median_of(np.abs(changes - median_of(changes)))) / math.sqrt(3.0)
        limit = lowest + max(options.overfitting_rise * abs(lowest), NOISE * noise)
        since = losses[-max(late, (len(losses) - best) // 2) :]
        if losses[-late:].min() <= limit or median_of(since) <= limit:
            return []
        levels = _training_levels(evaluations, best)
        if levels is None or not _falls(*levels):
            return []
        return [self._finding(evaluations, best, lowest, limit, *levels)]

    def _finding(
        self,
        evaluations: list[_Evaluation],
        best: int,
        lowest: float,
        limit: float,
        before: Level,
        training: Level,
    ) -> Finding:
        now, then = evaluations[-1], evaluations[best]
        return Finding(
            kind="overfitting",
            severity="warning",
            subject="val_loss",
            message=f"Validation loss rose from {lowest:.4g} at step {then.step} to {now.loss:.4g} at step "
            f"{now.step}, while the training loss fell from {before.median:.4g} to {training.median:.4g}",
            value=now.loss,
            threshold=limit,
            baseline={"lowest": lowest, "step": float(then.step), "training": before.median},
            neighbours=tuple((item.step, item.loss) for item in evaluations[-NEIGHBOURS:]),
        )


def _training_levels(evaluations: list[_Evaluation], best: int) -> tuple[Level, Level] | None:
    """Levels of the training loss up to the best evaluation and at last; None where too few are known."""
    before = [loss for evaluation in evaluations[: best + 1] for loss in evaluation.training][-POOLED:]
    if len(before) < MIN_POOLED:
        # The best came so early that the losses right after it must help: lower ones, if it falls.
        before = [loss for evaluation in evaluations for loss in evaluation.training][:MIN_POOLED]
    since = [loss for evaluation in evaluations[best + 1 :] for loss in evaluation.training][-POOLED:]
    if min(len(before), len(since)) < MIN_POOLED:
        return None
    return level_of(before), level_of(since)


def _falls(before: Level, now: Level) -> bool:
    """Whether the training loss has fallen, beyond its noise."""
    fall = before.median - now.median
    return fall > max(2.0 * (before.error + now.error), MIN_FALL * abs(before.median))
