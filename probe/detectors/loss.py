"""Loss spike: the loss jumps far above its own recent history.

Called on the training thread once per step. Losses may be negative (a log density) or zero.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from .base import DetectorThresholds, Finding, Observation, ObservationBatch
from .baselines import Baseline, SeriesHistory, Strikes
from .nonfinite import NEIGHBOURS
from .tails import Tail

SCALE_SHARE: Final = 0.05
"""A jump below this share of the level the run came down from is noise of a converged run."""
SCALE_MEMORY: Final = 0.999
"""Per step; the level the run came down from is forgotten over some thousand steps ..."""
LASTING_SHARE: Final = 1e-3
"""... but a jump below this share of its highest level ever is noise for good."""
ZERO_SHARE: Final = 0.5
"""Where most losses are exactly 0, a spike is above this share of the highest level ever, and above every
ordinary loss so far."""
TAIL_FACTOR: Final = 3.0
"""A spike is this many times further above the median than the highest 5 % of healthy steps: MAD is blind
to rare but regular hard batches."""
LOSS_WINDOW: Final = 64
"""Shorter than the gradients' window: early in a run the loss falls too fast for older values to count."""
CAUTION_STEPS: Final = 128
"""Until this many healthy losses are known, a spike must be up to twice as high: 30 values say little about
the tails of their distribution."""
ROUNDING: Final = 1e-6
"""A loss that has been below 0 counts as 0 where it is nearer to 0 than this: where terms of the order of 1
cancel (normalised advantages) it is rounding noise, of which nothing is a multiple."""
REFRESH_STEPS: Final = 4
_NEWEST: Final = 128


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
        self.newest: deque[int] = deque(maxlen=_NEWEST)
        """Steps of the newest spikes."""
        self._step = -1
        self._scale: float = 0.0
        self._highest_scale: float = 0.0
        self._highest: float = 0.0
        self._was_negative = False
        self._tail = Tail()
        self._seen: int = 0
        self._reset()

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding when this step's loss is a spike."""
        loss = None if observation.loss is None else float(observation.loss)
        if observation.step < self._step:
            self._reset()
        self._step = observation.step
        if loss is None or not math.isfinite(loss):
            return []
        [loss] = self._without_rounding([loss])
        limit = self._limit()
        is_spike = limit is not None and loss > limit
        finding = self._finding(observation.step, loss, limit) if limit is not None and is_spike else None
        if is_spike:
            self.newest.append(observation.step)
        self._recent.append((observation.step, loss))
        if self._strikes.is_new_normal(abnormal=is_spike):
            self._reset()
        elif not is_spike:
            self._learn(loss)
        return [] if finding is None else [finding]

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn losses that stay below the plain limit, without the caution of an early run."""
        if batch.steps[0] < self._step:
            return False
        pairs = [
            (step, float(loss))
            for step, loss in zip(batch.steps, batch.losses, strict=True)
            if loss is not None
        ]
        was_negative = self._was_negative
        losses = self._without_rounding([loss for _, loss in pairs])
        if losses and not self._learn_batch(losses):
            self._was_negative = was_negative
            return False
        self._recent.extend(pairs[-NEIGHBOURS:])
        self._strikes.calm(len(pairs))
        self._step = batch.steps[-1]
        return True

    def _without_rounding(self, losses: list[float]) -> list[float]:
        """Return losses with 0 for those that are rounding noise around it."""
        kept = []
        for loss in losses:
            self._was_negative |= loss < 0.0
            kept.append(0.0 if self._was_negative and abs(loss) < ROUNDING else loss)
        return kept

    def _learn_batch(self, losses: list[float]) -> bool:
        """Learn them all, or none and return False where one may be a spike."""
        if len(self._plain) < self._thresholds.warmup_steps or self._scale == 0.0:
            return False
        if not all(map(math.isfinite, losses)):
            return False
        baselines = self._plain.preview(losses)
        starts = [baseline.start for baseline in baselines] + [len(losses)]
        for baseline, start, stop in zip(baselines, starts, starts[1:], strict=False):
            if start < stop and max(losses[start:stop]) > baseline.median + self._jump(baseline):
                return False
        for baseline, start, stop in zip(baselines, starts, starts[1:], strict=False):
            if baseline.mad > 0.0:
                self._tail.extend(losses[start:stop], baseline.median, self._jump(baseline))
        self._learn_scale(baselines, len(losses))
        self._plain.extend(losses, baselines)
        self._seen += len(losses)
        self._highest = max(self._highest, *losses)
        last_not_positive = next((i for i in range(len(losses) - 1, -1, -1) if losses[i] <= 0.0), None)
        if last_not_positive is not None:
            self._log.clear()
            losses = losses[last_not_positive + 1 :]
        self._log.extend([math.log(loss) for loss in losses])
        return True

    def _learn_scale(self, baselines: list[Baseline], steps: int) -> None:
        """Follow the level through the medians that stand after each of the steps."""
        stops = [baseline.start for baseline in baselines[1:]] + [steps + 1]
        scale, step = self._scale, 1
        for (_, median, _, _), stop in zip(baselines, stops, strict=True):
            level = abs(median)
            for _ in range(step, stop):
                scale *= SCALE_MEMORY
                if scale < level:
                    scale = level
                    self._highest_scale = max(self._highest_scale, level)
            step = stop
        self._scale = scale

    def _raise_scale(self, median: float) -> None:
        self._scale = max(self._scale * SCALE_MEMORY, abs(median))
        self._highest_scale = max(self._highest_scale, self._scale)

    def _reset(self) -> None:
        self._plain.clear()
        self._log.clear()
        self._strikes = Strikes()
        self._scale = 0.0
        self._highest_scale = 0.0
        self._highest = 0.0
        self._was_negative = False
        self._tail = Tail()
        self._seen = 0

    def _learn(self, loss: float) -> None:
        self._seen += 1
        self._highest = max(self._highest, loss)
        if len(self._plain) >= self._thresholds.warmup_steps:
            baseline = self._plain.baseline()
            if baseline.mad > 0.0:
                self._tail.learn(loss, baseline.median, self._jump(baseline))
        self._plain.add(loss)
        if loss > 0.0:
            self._log.add(math.log(loss))
        else:
            self._log.clear()
        if len(self._plain) >= self._thresholds.warmup_steps:
            self._raise_scale(self._plain.robust()[0])

    def _limit(self) -> float | None:
        """The loss above which a step is a spike; None during the warm-up and while all losses are 0."""
        if len(self._plain) < self._thresholds.warmup_steps or self._scale == 0.0:
            return None
        options, baseline = self._thresholds, self._plain.baseline()
        median = baseline.median
        jump = max(
            self._jump(baseline) * self._tail.factor(),
            SCALE_SHARE * self._scale,
            LASTING_SHARE * self._highest_scale,
        )
        if median == 0.0:
            # Most batches satisfy a hinge: for one that does not, the earlier losses give the scale.
            jump = max(jump, ZERO_SHARE * self._highest_scale, self._highest)
        caution = 2.0 - min(self._seen / CAUTION_STEPS, 1.0)
        limit = median + caution * jump
        if len(self._log) == len(self._plain):
            log_median, log_mad = self._log.robust()
            log_jump = caution * options.loss_spike_mads * log_mad
            limit = max(limit, math.exp(min(log_median + log_jump, 700.0)))
        return limit

    def _jump(self, baseline: Baseline) -> float:
        """How far above the median a loss may be by the scatter of the recent ones."""
        return max(
            self._thresholds.loss_spike_mads * baseline.mad,
            TAIL_FACTOR * (baseline.tail - baseline.median),
            (self._thresholds.loss_spike_factor - 1.0) * abs(baseline.median),
        )

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
