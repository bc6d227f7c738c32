"""Loss spike: the loss jumps far above its own recent history.

Called on the training thread once per step. Losses may be negative (a log density) or zero.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from .base import DetectorThresholds, Finding, Observation
from .history import SeriesHistory, Strikes
from .nonfinite import NEIGHBOURS

SCALE_SHARE: Final = 0.05
"""A jump below this share of the level the run came down from is noise of a converged run."""
SCALE_MEMORY: Final = 0.999
"""Per step; the level the run came down from is forgotten over some thousand steps."""
TAIL_FACTOR: Final = 3.0
"""A spike is this many times further above the median than the highest 5 % of healthy steps: MAD is blind
to rare but regular hard batches."""
LOSS_WINDOW: Final = 64
"""Shorter than the gradients' window: early in a run the loss falls too fast for older values to count."""
CAUTION_STEPS: Final = 128
"""Until this many healthy losses are known, a spike must be up to twice as high: 30 values say little about
the tails of their distribution."""
REFRESH_STEPS: Final = 4


class LossSpikeDetector:
    """Emits `loss_spike`, a warning.

    Positive losses are judged in the log domain as well: batches of heavy-tailed losses scatter by factors,
    not by differences. Spikes do not enter the baseline, unless they go on for so long that they are the
    new normal (a curriculum step).
    """

    def __init__(self, thresholds: DetectorThresholds) -> None:
        self._thresholds = thresholds
        self._plain = SeriesHistory(window=LOSS_WINDOW, refresh_steps=REFRESH_STEPS)
        self._log = SeriesHistory(window=LOSS_WINDOW, refresh_steps=REFRESH_STEPS)
        self._recent: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._step = -1
        self._reset()

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding when this step's loss is a spike."""
        loss = None if observation.loss is None else float(observation.loss)
        if observation.step < self._step:
            self._reset()
        self._step = observation.step
        if loss is None or not math.isfinite(loss):
            return []
        limit = self._limit()
        is_spike = limit is not None and loss > limit
        finding = self._finding(observation.step, loss, limit) if limit is not None and is_spike else None
        self._recent.append((observation.step, loss))
        if self._strikes.is_new_normal(abnormal=is_spike):
            self._reset()
        elif not is_spike:
            self._learn(loss)
        return [] if finding is None else [finding]

    def _reset(self) -> None:
        self._plain.clear()
        self._log.clear()
        self._strikes = Strikes()
        self._scale = 0.0
        self._seen = 0

    def _learn(self, loss: float) -> None:
        self._seen += 1
        self._plain.add(loss)
        if loss > 0.0:
            self._log.add(math.log(loss))
        else:
            self._log.clear()
        self._scale *= SCALE_MEMORY
        if len(self._plain) >= self._thresholds.warmup_steps:
            self._scale = max(self._scale, abs(self._plain.robust()[0]))

    def _limit(self) -> float | None:
        """The loss above which a step is a spike; None during the warm-up and while all losses are 0."""
        if len(self._plain) < self._thresholds.warmup_steps or self._scale == 0.0:
            return None
        options = self._thresholds
        median, mad = self._plain.robust()
        jump = max(
            options.loss_spike_mads * mad,
            TAIL_FACTOR * (self._plain.tail - median),
            (options.loss_spike_factor - 1.0) * abs(median),
            SCALE_SHARE * self._scale,
        )
        caution = 2.0 - min(self._seen / CAUTION_STEPS, 1.0)
        limit = median + caution * jump
        if len(self._log) == len(self._plain):
            log_median, log_mad = self._log.robust()
            log_jump = caution * options.loss_spike_mads * log_mad
            limit = max(limit, math.exp(min(log_median + log_jump, 700.0)))
        return limit

    def _finding(self, step: int, loss: float, limit: float) -> Finding:
        median, mad = self._plain.robust()
        times = f"{loss / median:.3g}x" if median > 0.0 else f"{loss - median:.4g} above"
        return Finding(
            kind="loss_spike",
            severity="warning",
            subject="loss",
            message=f"Loss {loss:.4g} at step {step} is {times} the median ({median:.4g}) of the last "
            f"{len(self._plain)} healthy steps",
            value=loss,
            threshold=limit,
            baseline={"median": median, "mad": mad, "steps": float(len(self._plain))},
            neighbours=tuple(self._recent),
        )
