"""Update ratios: updates so large that they replace the weights, or so small that nothing is learnt.

The ratio is the L2 norm of an update over that of what it updates. 1e-3 is usual; the first updates of small
models with Adam go up to 1 and come down by themselves, so a large one counts only if the loss suffers.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np

from .base import Finding
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .sample import Floats, Sample, Succession
from .sampled_thresholds import SampledThresholds

MIN_HISTORY: Final = 3
GROWN_FLOOR: Final = 0.1
"""A ratio below it is none to worry about, however much it has grown."""
LOSS_RISE: Final = 3.0
"""The loss has suffered when it is this many times what it was before the update ..."""
SUFFER_SAMPLES: Final = 3
"""... in the median of at least so many samples after it ..."""
SUFFER_STEPS: Final = 20
"""... within so many steps."""
WARMUP_STEPS: Final = 10
"""What begins at 0 (biases, LoRA's B, a zero-initialised model) has a ratio of 1 / n at its n-th update."""
LOW_STEPS: Final = 30
LOW_SAMPLES: Final = 2
CLIPPED_SHARE: Final = 1e-3
"""Where clipping leaves no more of the gradient than this share, it is why updates are small ..."""
CLIPPED_FACTOR: Final = 10.0
"""... and the floor is this many times as high: nobody means to train like that."""
DECAY_LIMIT: Final = 0.1
"""Share of every weight that decay takes at a step, momentum included: the model remembers ten batches."""
MIN_GRADIENT: Final = 1e-5
"""Share of the weights' norm below which the gradient itself is small: a converged run, say."""


class UpdateRatioDetector:
    """Emits `update_ratio_high` and `update_ratio_low`, warnings."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._succession = Succession()
        self._decay: Finding | None = None
        self._reported: Finding | None = None
        self._reset()

    def _reset(self) -> None:
        self._norm: Floats | None = None
        self._newest: Floats | None = None
        self._low: Finding | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._highest, self._seen = 0.0, 0
        self._armed: tuple[int, float, float] | None = None
        self._after: list[float] = []
        self._first_step: int | None = None
        self._first_loss: float | None = None
        self._large = 0
        self._lows: list[int] = []
        self._has_been_higher = False
        self._rate = -math.inf

    def note_decay(self, step: int, share: float, *, how: str) -> None:
        """Account for what weight decay alone takes of the weights at each step, 0 to 1 and above."""
        self._decay = None
        if share >= DECAY_LIMIT:
            self._decay = Finding(
                kind="update_ratio_high",
                severity="warning",
                subject="update_ratio",
                message=f"Weight decay alone takes {share:.3g} times the size of the weights at every step "
                f"({how}) at step {step}: what is learnt is forgotten at once",
                value=share,
                threshold=DECAY_LIMIT,
            )

    @property
    def has_news(self) -> bool:
        """Whether `observe` has something to tell that it was told of, and has not said yet."""
        return self._decay is not None and self._decay is not self._reported

    def observe(self, sample: Sample) -> list[Finding]:
        """Return at most one of each kind."""
        if self._succession.begins_anew(sample):
            self._reset()
        if sample.parameter_norm is not None:
            self._norm = sample.parameter_norm
        high = self._suffered(sample)
        if sample.update_ratio is not None and sample.update_ratio is not self._newest:
            self._newest = sample.update_ratio
            total = self._total(sample, sample.update_ratio)
            if total is not None and total > 0.0:
                high = self._judge_high(sample, total) or high
                self._low = self._judge_low(sample, sample.update_ratio, total)
        self._reported = self._decay
        return [finding for finding in (high or self._decay, self._low) if finding is not None]

    def _total(self, sample: Sample, ratio: Floats) -> float | None:
        """Ratio of the whole model; None where nothing is known of it."""
        given = sample.scalars.get("update_ratio")
        if given is not None and math.isfinite(given):
            return given
        known = np.isfinite(ratio)
        if self._norm is None or len(self._norm) != len(ratio) or not known.any():
            return None
        weights = np.square(self._norm[known])
        size = float(weights.sum())
        if not 0.0 < size < math.inf:
            return None
        return math.sqrt(float((weights * np.square(ratio[known])).sum()) / size)

    # ------------------------------------------------------------------------------------------ high

    def _judge_high(self, sample: Sample, total: float) -> Finding | None:
        options, loss = self._thresholds, sample.loss
        grown = options.update_ratio_growth * self._highest
        has_grown = self._seen >= MIN_HISTORY and total > max(grown, GROWN_FLOOR)
        is_large = total >= options.update_ratio_limit or has_grown
        if is_large and loss is not None and loss > 0.0 and self._armed is None:
            self._armed, self._after = (sample.step, total, loss), []
        if self._first_step is None:
            self._first_step = sample.step
        is_early = sample.step < self._first_step + WARMUP_STEPS
        is_sustained = total >= options.update_ratio_sustained and not is_early
        self._large = self._large + 1 if is_sustained else 0
        if self._large <= 1:
            self._first_loss = loss
        finding = None
        if self._large >= options.sustained_samples and self._has_not_fallen(loss):
            how = f"for {self._large} samples in a row, and the loss does not fall"
            finding = self._high(sample, sample.step, total, options.update_ratio_sustained, how)
        self._recent.append((sample.step, total))
        self._seen += 1
        if not has_grown:
            self._highest = max(self._highest, total)
        return finding

    def _has_not_fallen(self, loss: float | None) -> bool:
        first = self._first_loss
        return loss is not None and first is not None and first > 0.0 and loss >= first

    def _suffered(self, sample: Sample) -> Finding | None:
        """Judge the loss after a large update."""
        if self._armed is None or sample.step == self._armed[0]:
            return None
        step, total, before = self._armed
        if sample.step > step + SUFFER_STEPS:
            self._armed = None
            return None
        if sample.loss is None:
            return None
        self._after.append(sample.loss)
        loss = float(median_of(self._after))
        if len(self._after) < SUFFER_SAMPLES or loss <= LOSS_RISE * before:
            return None
        how = f"and the loss went from {before:.4g} to {loss:.4g} by step {sample.step}"
        limit = min(self._thresholds.update_ratio_limit, max(GROWN_FLOOR, total))
        return self._high(sample, step, total, limit, how)

    def _high(self, sample: Sample, step: int, total: float, limit: float, how: str) -> Finding:
        subject = "update_ratio"
        ratio = self._newest
        if ratio is not None and np.isfinite(ratio).any():
            subject = sample.parameter_names[int(np.nanargmax(ratio))]
        return Finding(
            kind="update_ratio_high",
            severity="warning",
            subject=subject,
            message=f"The update of step {step} is {total:.3g} times as large as the weights, {how}",
            value=total,
            threshold=limit,
            baseline={"highest_before": self._highest} if self._seen else None,
            neighbours=tuple(self._recent),
        )

    # ------------------------------------------------------------------------------------------- low

    def _judge_low(self, sample: Sample, ratio: Floats, total: float) -> Finding | None:
        """A ratio that was never higher, with a learning rate that does not rise, and a real gradient."""
        if self._has_been_higher:
            return None
        median, rate = _median(sample, ratio), _rate(sample)
        is_rising, self._rate = rate > self._rate > -math.inf, rate
        if median is None:
            return self._low
        left = _left_by_clipping(sample)
        floor = self._thresholds.update_ratio_floor * (CLIPPED_FACTOR if left <= CLIPPED_SHARE else 1.0)
        self._has_been_higher |= median >= floor
        if self._has_been_higher or is_rising or not self._has_gradient(sample):
            self._lows = []
            return None
        self._lows.append(sample.step)
        first = self._lows[0]
        if len(self._lows) < LOW_SAMPLES or sample.step - first < LOW_STEPS:
            return None
        self._lows = [first, sample.step]
        return Finding(
            kind="update_ratio_low",
            severity="warning",
            subject="update_ratio",
            message=f"Half of the parameters change by less than {max(median, floor):.1g} of their size in a "
            f"step, since step {first}, and never changed faster (whole model: {total:.2g})"
            f"{_of_clipping(left)}",
            value=median,
            threshold=floor,
            neighbours=tuple(self._recent),
        )

    def _has_gradient(self, sample: Sample) -> bool:
        total = sample.total_grad_norm
        if total is None or self._norm is None:
            return total is not None and total > 0.0
        size = float(np.linalg.norm(self._norm))
        return total > MIN_GRADIENT * size


def _median(sample: Sample, ratio: Floats) -> float | None:
    """Median over the parameters that have a gradient."""
    known = np.isfinite(ratio)
    if sample.grad_norm is not None and len(sample.grad_norm) == len(ratio):
        known &= sample.grad_norm > 0.0
    return float(median_of(ratio[known])) if known.any() else None


def _left_by_clipping(sample: Sample) -> float:
    """Share of the gradient's norm that clipping has left at this step; 1 where nothing clips."""
    after, before = sample.scalars.get("grad_norm_clipped"), sample.total_grad_norm
    return after / before if after is not None and before else 1.0


def _of_clipping(left: float) -> str:
    return f"; clipping leaves {left:.2g} of the gradient" if left <= CLIPPED_SHARE else ""


def _rate(sample: Sample) -> float:
    rates = [value for name, value in sample.scalars.items() if name == "lr" or name.startswith("lr/")]
    return max(rates, default=-math.inf)
