"""Gradient explosion and vanishing, judged against the run's own history and against the other layers.

Called on the training thread once per step. Works on the logarithm of each layer's gradient norm, whose
noise is about symmetric; baselines are medians and MADs over the last 128 healthy steps (`baselines.py`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import DetectorThresholds, Finding, Floats, Observation, ObservationBatch
from .baselines import WINDOW, Strikes
from .bursts import TAIL_FACTOR, BurstContext
from .gradient_baseline import BatchPreview, GradientBaseline, exp_of, l2_norm, log_norm
from .heights import LayerHeights
from .layers import LayerIndex, and_more, in_words
from .nonfinite import NEIGHBOURS, has_elements, has_nonfinite_gradient
from .returns import Returns

CRITICAL_FACTOR: Final = 100.0
"""An explosion is critical from this many times the threshold on: clipping no longer saves the step's
direction, and without it one such step overwrites the weights."""
OUTWEIGHS: Final = 2.0
"""A layer that bursts alone counts once it exceeds this many times the whole model's usual norm."""
VANISHING_MADS: Final = 6.0
"""A vanished norm is also this many MADs below its median: bursty layers are often near zero."""
NEGLIGIBLE_SHARE: Final = 1e-5
"""Layers whose usual norm is below this share of the model's hold rounding noise (a key bias, say)."""
ABRUPT_STEPS: Final = 10
"""The gradient of the whole model counts as vanished only if it fell this fast: convergence is gradual."""
NORMAL_SHARE: Final = 0.1
"""The fall of the whole model is measured from the last step above this share of the median."""
SLACK: Final = 1e-9
"""How much nearer to a limit, in natural-log units, a batch's proof stops than a single step's verdict: the
two round in another order."""


class GradientScaleDetector:
    """Emits `gradient_explosion` (warning, critical from 100 thresholds on) and `gradient_vanishing`.

    Layers that have no gradient at a step are left out on both sides of every comparison, so that
    alternating optimisers and sparsely used experts are compared with their own kind of step.
    """

    def __init__(self, thresholds: DetectorThresholds) -> None:
        self._thresholds = thresholds
        self._index = LayerIndex()
        self._total: deque[tuple[int, Floats]] = deque(maxlen=NEIGHBOURS)
        self._recent: deque[tuple[int, Floats]] = deque(maxlen=NEIGHBOURS)
        self._weights: Floats | None = None
        self._step = -1
        self._begin()

    def observe(self, observation: Observation) -> list[Finding]:
        """Return at most one explosion and one vanishing."""
        if observation.grad_norm is None:
            return []
        self._index.update(observation, self._begin, is_again=observation.step < self._step)
        self._step = observation.step
        if has_nonfinite_gradient(observation):
            return []
        if observation.parameter_norm is not None:
            self._weights = observation.parameter_norm
        with np.errstate(all="ignore"):
            findings = self._judge(observation, self._index.norms(observation))
        self._bursts.learn((observation.loss,))
        return findings

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn steps whose norms keep so close to the baselines that no limit can be reached."""
        if not self._index.is_of(batch) or batch.steps[0] < self._step or self._returns.waits:
            return False
        totals = [total for total in batch.total_grad_norms if total is not None]
        if len(totals) < len(batch) or not all(map(math.isfinite, totals)):
            return False
        preview = self._state.preview(self._index.norms_of(batch))
        if preview is None:
            return False
        options = self._thresholds
        jump, fall = math.log(options.explosion_factor) - SLACK, math.log(options.vanishing_factor)
        if not self._state.stay_within(
            preview, jump=jump, fall=fall, mads=options.explosion_mads, slack=SLACK
        ):
            return False
        last_normal = self._last_normal_step(batch.steps, preview)
        if last_normal is None:
            return False
        self._last_normal = last_normal
        if self._low_run.any():
            self._low_run[(preview.norms > 0.0).any(axis=0)] = 0
        self.heights.note_batch(preview)
        self._state.extend(preview)
        self._strikes.calm(len(batch))
        self._bursts.learn(batch.losses)
        newest = list(zip(batch.steps, preview.norms, strict=True))[-NEIGHBOURS:]
        self._recent.extend(newest)
        self._total.extend(newest)
        self._weights = next((n for n in reversed(batch.parameter_norms) if n is not None), self._weights)
        self._step = batch.steps[-1]
        return True

    def _begin(self) -> None:
        self._weights = None
        self._bursts = BurstContext(self._thresholds)
        self._reset()

    def _reset(self) -> None:
        self._low_run: npt.NDArray[np.int64] = np.zeros(len(self._index.layers), dtype=np.int64)
        self._returns = Returns(len(self._low_run) + 1, steps=self._thresholds.vanishing_steps)
        self._strikes, self._total_low_run, self._last_normal = Strikes(), 0, -math.inf
        self._recent.clear()
        state = GradientBaseline(len(self._low_run), warmup_steps=self._thresholds.warmup_steps)
        # No call behind this one: a signal's handler would raise there, and leave parts that do not fit.
        self.heights: LayerHeights = LayerHeights(state)
        self._state: GradientBaseline = state
        self._layers, self._common = state.layers, state.common

    def _judge(self, observation: Observation, norms: Floats) -> list[Finding]:
        if np.isinf(norms).any():
            return [self._overflow(observation, norms)] if has_elements(observation) else []
        logs = np.where(norms > 0.0, np.log(norms), np.nan)
        ready = self._state.ready(logs)
        common, expected = self._state.against_median(norms, ready)
        self.heights.note(logs, ready)
        explosion = self._explosion(observation, norms, logs, ready, common=common, expected=expected)
        low = self._low_layers(logs, ready)
        vanishing = self._vanishing(observation, norms, low, common=common, expected=expected)
        self._recent.append((observation.step, norms))
        self._total.append((observation.step, norms))
        if self._strikes.is_new_normal(abnormal=explosion is not None):
            self._reset()
        elif explosion is None and not self._total_low_run:
            self._state.learn(np.where(low, np.nan, logs), common)
        return [finding for finding in (explosion, vanishing) if finding is not None]

    # ----------------------------------------------------------------------------------- quiet steps

    def _last_normal_step(self, steps: Sequence[int], preview: BatchPreview) -> float | None:
        """The last step at a normal level, of the batch or before it; None where a step may be abnormal."""
        if len(self._common) < max(self._thresholds.warmup_steps // 2, 1):
            return None
        jump, fall = math.log(self._thresholds.explosion_factor), math.log(self._thresholds.vanishing_factor)
        lowest, highest = self._common.reach(np.array(preview.common))
        if highest - lowest < min(jump, -fall, -math.log(NORMAL_SHARE)) - SLACK:
            return steps[-1]
        last_normal = self._last_normal
        baselines = self._state.baselines_of(preview)
        stops = [baseline.start for baseline in baselines[1:]] + [len(steps)]
        for (start, median, mad, _), stop in zip(baselines, stops, strict=True):
            limit = max(self._thresholds.explosion_mads * mad, jump) - SLACK
            for index in range(start, stop):
                above = preview.common[index] - median
                if above > limit or above < fall:
                    return None
                if above > math.log(NORMAL_SHARE):
                    last_normal = steps[index]
        return last_normal

    # ------------------------------------------------------------------------------------- explosion

    def _explosion(
        self,
        observation: Observation,
        norms: Floats,
        logs: Floats,
        ready: npt.NDArray[np.bool_],
        *,
        common: float,
        expected: float,
    ) -> Finding | None:
        if math.isnan(common):
            return None
        options = self._thresholds
        factor = math.log(options.explosion_factor)
        own_limits = self._layers.median + np.maximum(options.explosion_mads * self._layers.mad, factor)
        limits = np.maximum(own_limits, math.log(OUTWEIGHS) + expected)
        limit = math.inf
        if len(self._common) >= options.warmup_steps // 2:
            _, median, mad, tail = self._common.baseline()
            reach = TAIL_FACTOR * (tail - median)
            limit = expected + median + max(options.explosion_mads * mad, factor, reach)
        if not (common + expected > limit or (ready & (logs > limits)).any()):
            return None
        surcharge = self._bursts.surcharge(observation.loss)
        limit, own_limits = limit + surcharge, own_limits + surcharge
        floor = self._state.floor(ready, 0.0 if self._weights is None else l2_norm(self._weights))
        if common + expected > max(limit, floor):
            over = np.flatnonzero(ready & (logs > own_limits))
            usual = expected + self._common.robust()[0]
            return self._explosion_of_all(observation, norms, over, limit=max(limit, floor), expected=usual)
        limits = np.maximum(np.maximum(limits, own_limits), floor)
        over = np.flatnonzero(ready & (logs > limits))
        if len(over):
            limits[over] = np.maximum(limits[over], self._bursts.limits(observation.loss, self._layers, over))
            over = over[logs[over] > limits[over]]
        return self._explosion_of_layers(observation, logs, over, limits) if len(over) else None

    def _explosion_of_all(
        self,
        observation: Observation,
        norms: Floats,
        over: npt.NDArray[np.intp],
        *,
        limit: float,
        expected: float,
    ) -> Finding:
        worst = int(np.nanargmax(norms))
        rows = over if len(over) else np.array([worst])
        subject = self._index.name(observation, worst)
        value, median = l2_norm(norms), exp_of(expected)
        return self._exploded(
            observation,
            f"Gradient norm {value:.4g} at step {observation.step} is {value / median:.3g}x the run's median "
            f"({median:.4g}), largest in {in_words(subject)} ({norms[worst]:.4g})",
            subject=subject,
            value=value,
            threshold=exp_of(limit),
            baseline=self._baseline_of_all(median),
            neighbours=self._totals(),
            rows=rows,
        )

    def _explosion_of_layers(
        self, observation: Observation, logs: Floats, over: npt.NDArray[np.intp], limits: Floats
    ) -> Finding:
        worst = int(over[np.argmax(logs[over] - limits[over])])
        subject = self._index.name(observation, worst)
        value, median = exp_of(logs[worst]), exp_of(self._layers.median[worst])
        return self._exploded(
            observation,
            f"Gradient norm {value:.4g} of {in_words(subject)} at step {observation.step} is "
            f"{value / median:.3g}x its own median ({median:.4g})",
            subject=subject,
            value=value,
            threshold=exp_of(limits[worst]),
            baseline=self._baseline(worst),
            neighbours=self._neighbours(worst),
            rows=over,
        )

    def _overflow(self, observation: Observation, norms: Floats) -> Finding:
        """All elements are finite, but their norm is not."""
        rows = np.flatnonzero(np.isinf(norms))
        subject = self._index.name(observation, int(rows[0]))
        return self._exploded(
            observation,
            f"Gradient norm of {in_words(subject)} overflows at step {observation.step}, "
            f"though every element is finite",
            subject=subject,
            value=math.inf,
            threshold=float(np.finfo(np.float32).max),
            baseline=None,
            neighbours=self._totals(),
            rows=rows,
        )

    def _exploded(
        self,
        observation: Observation,
        message: str,
        *,
        subject: str,
        value: float,
        threshold: float,
        baseline: dict[str, float] | None,
        neighbours: tuple[tuple[int, float], ...],
        rows: npt.NDArray[np.intp],
    ) -> Finding:
        is_critical = math.isinf(value) or value > CRITICAL_FACTOR * threshold
        return Finding(
            kind="gradient_explosion",
            severity="critical" if is_critical else "warning",
            subject=subject,
            message=message,
            value=value,
            threshold=threshold,
            baseline=baseline,
            neighbours=neighbours,
            affected=self._names(observation, rows),
        )

    # ------------------------------------------------------------------------------------- vanishing

    def _low_layers(self, logs: Floats, ready: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Layers that fell below their own level, recent or slow, much further than the whole model did."""
        fall = math.log(self._thresholds.vanishing_factor)
        low = np.zeros(len(logs), dtype=np.bool_)
        if not (logs < np.fmax(self._layers.median, self._layers.slow) + fall).any():
            return low
        limit = np.minimum(fall, -VANISHING_MADS * self._layers.mad)
        for reference in (self._layers.median, self._layers.slow):
            expected = log_norm(np.where(ready, reference, -np.inf))
            common = log_norm(np.where(ready, logs, -np.inf)) - expected
            own = logs - reference
            matters = reference - expected > math.log(NEGLIGIBLE_SHARE)
            low |= matters & (own < limit) & (own - common < fall / 2.0)
        return low & ready

    def _vanishing(
        self,
        observation: Observation,
        norms: Floats,
        low: npt.NDArray[np.bool_],
        *,
        common: float,
        expected: float,
    ) -> Finding | None:
        self._low_run[(norms > 0.0) & ~low] = 0
        self._low_run += low
        self._total_low_run = self._total_low_run + 1 if self._is_total_low(observation.step, common) else 0
        if not (self._total_low_run or low.any() or self._returns.waits):
            return None
        is_low = np.append(low, self._total_low_run > 0)
        is_usual = np.append(norms > NORMAL_SHARE * self._layers.level, self._last_normal == observation.step)
        self._returns.note(is_low, is_usual, self._state.healthy)
        patience = self._returns.patience(self._state.healthy)
        if self._total_low_run >= patience[-1]:
            return self._vanished_total(observation, norms, expected=expected)
        late = np.flatnonzero(low & (self._low_run >= patience[:-1]))
        return self._vanished_layers(observation, norms, late) if len(late) else None

    def _is_total_low(self, step: int, common: float) -> bool:
        """Whether the whole model lost its gradient within a few steps (or is still without it)."""
        if math.isnan(common) or len(self._common) < self._thresholds.warmup_steps // 2:
            return False
        median, mad = self._common.robust()
        fall = common - median
        if fall > math.log(NORMAL_SHARE):
            self._last_normal = step
        limit = min(math.log(self._thresholds.vanishing_factor), -VANISHING_MADS * mad)
        return fall < limit and (self._total_low_run > 0 or step - self._last_normal <= ABRUPT_STEPS)

    def _vanished_total(self, observation: Observation, norms: Floats, *, expected: float) -> Finding:
        rows = np.flatnonzero(norms > 0.0)
        worst = int(rows[np.argmin(np.log(norms[rows]) - self._layers.median[rows])])
        value, median = l2_norm(norms), exp_of(expected + self._common.robust()[0])
        return Finding(
            kind="gradient_vanishing",
            severity="warning",
            subject=self._index.name(observation, worst),
            message=f"Gradient norm of the whole model is {value:.4g} at step {observation.step}, "
            f"1/{median / value:.3g} of the run's median ({median:.4g}), "
            f"for {self._total_low_run} steps in a row",
            value=value,
            threshold=median * self._thresholds.vanishing_factor,
            baseline=self._baseline_of_all(median),
            neighbours=self._totals(),
            affected=self._names(observation, rows),
        )

    def _vanished_layers(
        self, observation: Observation, norms: Floats, late: npt.NDArray[np.intp]
    ) -> Finding:
        level = np.fmax(self._layers.median, self._layers.slow)
        worst = int(late[np.argmin(np.log(norms[late]) - level[late])])
        subject = self._index.name(observation, worst)
        value, median = float(norms[worst]), exp_of(level[worst])
        fell = f" (it{and_more(len(late) - 1)} fell)" if len(late) > 1 else ""
        return Finding(
            kind="gradient_vanishing",
            severity="warning",
            subject=subject,
            message=f"{in_words(subject)}: gradient norm {value:.2g} at step {observation.step}, "
            f"1/{float(f'{median / value:.2g}'):,.0f} of its median ({median:.2g}), "
            f"for {int(self._low_run[worst])} steps; other layers did not change{fell}",
            value=value,
            threshold=median * self._thresholds.vanishing_factor,
            baseline=self._baseline(worst) | {"median": median},
            neighbours=self._neighbours(worst),
            affected=self._names(observation, late),
        )

    # ---------------------------------------------------------------------------------------- shared

    def _baseline_of_all(self, median: float) -> dict[str, float]:
        return {"median": median, "mad_log": self._common.robust()[1], "steps": float(len(self._common))}

    def _baseline(self, row: int) -> dict[str, float]:
        return {
            "median": exp_of(self._layers.median[row]),
            "mad_log": float(self._layers.mad[row]),
            "steps": float(min(self._layers.samples[row], WINDOW)),
        }

    def _totals(self) -> tuple[tuple[int, float], ...]:
        """Norms of the whole model at earlier steps."""
        return tuple((step, l2_norm(norms)) for step, norms in self._total)

    def _neighbours(self, row: int) -> tuple[tuple[int, float], ...]:
        """Earlier steps at which the layer had a gradient."""
        return tuple((step, float(norms[row])) for step, norms in self._recent if not np.isnan(norms[row]))

    def _names(self, observation: Observation, rows: npt.NDArray[np.intp]) -> tuple[str, ...]:
        return tuple(self._index.name(observation, int(row)) for row in rows)
