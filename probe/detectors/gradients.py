"""Gradient explosion and vanishing, judged against the run's own history and against the other layers.

Called on the training thread once per step. Works on the logarithm of each layer's gradient norm, whose
noise is about symmetric; baselines are medians and MADs over the last 128 healthy steps (`history.py`).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import DetectorThresholds, Finding, Floats, Observation
from .history import WINDOW, RowHistory, SeriesHistory, Strikes
from .layers import LayerIndex, and_more, in_words
from .nonfinite import NEIGHBOURS, has_elements, has_nonfinite_gradient

CRITICAL_FACTOR: Final = 100.0
"""An explosion is critical from this many times the threshold on: clipping no longer saves the step's
direction, and without it one such step overwrites the weights."""
OUTWEIGHS: Final = 2.0
"""A layer that bursts alone counts once it exceeds this many times the whole model's usual norm."""
PEAK_SHARE: Final = 0.1
"""A burst below this share of the level that the run came down from is noise of a converged run."""
PEAK_DECAY: Final = 1e-3
"""Natural-log units per step in which that level is forgotten (a factor e in 1,000 steps)."""
VANISHING_MADS: Final = 6.0
"""A vanished norm is also this many MADs below its median: bursty layers are often near zero."""
NEGLIGIBLE_SHARE: Final = 1e-5
"""Layers whose usual norm is below this share of the model's hold rounding noise (a key bias, say)."""
ABRUPT_STEPS: Final = 10
"""The gradient of the whole model counts as vanished only if it fell this fast: convergence is gradual."""
NORMAL_SHARE: Final = 0.1
"""The fall of the whole model is measured from the last step above this share of the median."""


class GradientScaleDetector:
    """Emits `gradient_explosion` (warning, critical from 100 thresholds on) and `gradient_vanishing`.

    Layers that have no gradient at a step are left out on both sides of every comparison, so that
    alternating optimisers and sparsely used experts are compared with their own kind of step.
    """

    def __init__(self, thresholds: DetectorThresholds) -> None:
        self._thresholds = thresholds
        self._index = LayerIndex()
        self._total: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._recent: deque[tuple[int, Floats]] = deque(maxlen=NEIGHBOURS)
        self._step = -1
        self._reset()

    def observe(self, observation: Observation) -> list[Finding]:
        """Return at most one explosion and one vanishing."""
        if observation.grad_norm is None:
            return []
        if self._index.update(observation) or observation.step < self._step:
            self._reset()
        self._step = observation.step
        if has_nonfinite_gradient(observation):
            return []
        with np.errstate(all="ignore"):
            return self._judge(observation, self._index.norms(observation))

    def _reset(self) -> None:
        rows = len(self._index.layers)
        self._layers = RowHistory(rows)
        self._common = SeriesHistory(refresh_steps=4)
        self._strikes = Strikes()
        self._peak: Floats = np.full(rows, -np.inf)
        self._low_run: npt.NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._total_low_run = 0
        self._last_normal = -math.inf
        self._healthy = 0
        self._recent.clear()

    def _judge(self, observation: Observation, norms: Floats) -> list[Finding]:
        if np.isinf(norms).any():
            return [self._overflow(observation, norms)] if has_elements(observation) else []
        logs = np.where(norms > 0.0, np.log(norms), np.nan)
        ready = (self._layers.samples >= self._thresholds.warmup_steps) & ~np.isnan(
            logs + self._layers.median
        )
        common, expected = self._against_expected(logs, ready, self._layers.median)
        explosion = self._explosion(observation, norms, logs, ready, common=common, expected=expected)
        low = self._low_layers(logs, ready)
        vanishing = self._vanishing(observation, norms, low, common=common, expected=expected)
        self._remember(observation.step, norms)
        if self._strikes.is_new_normal(abnormal=explosion is not None):
            self._reset()
        elif explosion is None and not self._total_low_run:
            self._learn(np.where(low, np.nan, logs), common)
        return [finding for finding in (explosion, vanishing) if finding is not None]

    def _remember(self, step: int, norms: Floats) -> None:
        self._recent.append((step, norms))
        self._total.append((step, _norm(norms)))

    def _learn(self, logs: Floats, common: float) -> None:
        self._layers.add(logs)
        self._healthy += 1
        if self._healthy == self._thresholds.warmup_steps:
            self._layers.refresh(0, len(logs))
        self._peak = np.fmax(self._peak - PEAK_DECAY, self._layers.median)
        if math.isfinite(common):
            self._common.add(common)

    def _against_expected(
        self, logs: Floats, ready: npt.NDArray[np.bool_], reference: Floats
    ) -> tuple[float, float]:
        """Log of the norm over the ready layers, relative to what `reference` expects, and the latter."""
        if not ready.any():
            return math.nan, math.nan
        expected = _log_norm(np.where(ready, reference, -np.inf))
        return _log_norm(np.where(ready, logs, -np.inf)) - expected, expected

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
        floor = math.log(PEAK_SHARE) + _log_norm(np.where(ready, self._peak, -np.inf))
        own_limits = self._layers.median + np.maximum(options.explosion_mads * self._layers.mad, factor)
        limits = np.maximum(own_limits, max(math.log(OUTWEIGHS) + expected, floor))
        if len(self._common) >= options.warmup_steps // 2:
            median, mad = self._common.robust()
            limit = max(expected + median + max(options.explosion_mads * mad, factor), floor)
            if common + expected > limit:
                over = np.flatnonzero(ready & (logs > own_limits))
                return self._explosion_of_all(
                    observation, norms, over, limit=limit, expected=expected + median
                )
        over = np.flatnonzero(ready & (logs > limits))
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
        value, median = _norm(norms), _exp(expected)
        return self._exploded(
            observation,
            f"Gradient norm {value:.4g} at step {observation.step} is {value / median:.3g}x the run's median "
            f"({median:.4g}), largest in {in_words(subject)} ({norms[worst]:.4g})",
            subject=subject,
            value=value,
            threshold=_exp(limit),
            baseline={
                "median": median,
                "mad_log": self._common.robust()[1],
                "steps": float(len(self._common)),
            },
            neighbours=tuple(self._total),
            rows=rows,
        )

    def _explosion_of_layers(
        self, observation: Observation, logs: Floats, over: npt.NDArray[np.intp], limits: Floats
    ) -> Finding:
        worst = int(over[np.argmax(logs[over] - limits[over])])
        subject = self._index.name(observation, worst)
        value, median = _exp(logs[worst]), _exp(self._layers.median[worst])
        return self._exploded(
            observation,
            f"Gradient norm {value:.4g} of {in_words(subject)} at step {observation.step} is "
            f"{value / median:.3g}x its own median ({median:.4g})",
            subject=subject,
            value=value,
            threshold=_exp(limits[worst]),
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
            neighbours=tuple(self._total),
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
            common, expected = self._against_expected(logs, ready, reference)
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
        if self._total_low_run >= self._thresholds.vanishing_steps:
            return self._vanished_total(observation, norms, expected=expected)
        late = np.flatnonzero(low & (self._low_run >= self._thresholds.vanishing_steps))
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
        value, median = _norm(norms), _exp(expected + self._common.robust()[0])
        return Finding(
            kind="gradient_vanishing",
            severity="warning",
            subject=self._index.name(observation, worst),
            message=f"Gradient norm of the whole model is {value:.4g} at step {observation.step}, "
            f"1/{median / value:.3g} of the run's median ({median:.4g}), "
            f"for {self._total_low_run} steps in a row",
            value=value,
            threshold=median * self._thresholds.vanishing_factor,
            baseline={
                "median": median,
                "mad_log": self._common.robust()[1],
                "steps": float(len(self._common)),
            },
            neighbours=tuple(self._total),
            affected=self._names(observation, rows),
        )

    def _vanished_layers(
        self, observation: Observation, norms: Floats, late: npt.NDArray[np.intp]
    ) -> Finding:
        level = np.fmax(self._layers.median, self._layers.slow)
        worst = int(late[np.argmin(np.log(norms[late]) - level[late])])
        subject = self._index.name(observation, worst)
        value, median = float(norms[worst]), _exp(level[worst])
        fell = f" (it{and_more(len(late) - 1)} fell)" if len(late) > 1 else ""
        return Finding(
            kind="gradient_vanishing",
            severity="warning",
            subject=subject,
            message=f"Gradient norm {value:.4g} of {in_words(subject)} at step {observation.step} is "
            f"1/{median / value:.3g} of its own median ({median:.4g}), "
            f"for {int(self._low_run[worst])} steps in a row, while "
            f"other layers keep theirs{fell}",
            value=value,
            threshold=median * self._thresholds.vanishing_factor,
            baseline=self._baseline(worst),
            neighbours=self._neighbours(worst),
            affected=self._names(observation, late),
        )

    # ---------------------------------------------------------------------------------------- shared

    def _baseline(self, row: int) -> dict[str, float]:
        return {
            "median": _exp(self._layers.median[row]),
            "mad_log": float(self._layers.mad[row]),
            "steps": float(min(self._layers.samples[row], WINDOW)),
        }

    def _neighbours(self, row: int) -> tuple[tuple[int, float], ...]:
        """Earlier steps at which the layer had a gradient."""
        return tuple((step, float(norms[row])) for step, norms in self._recent if not np.isnan(norms[row]))

    def _names(self, observation: Observation, rows: npt.NDArray[np.intp]) -> tuple[str, ...]:
        return tuple(self._index.name(observation, int(row)) for row in rows)


def _exp(log: float) -> float:
    """Exponential that neither overflows nor becomes 0."""
    return math.exp(min(max(float(log), -700.0), 700.0))


def _norm(norms: Floats) -> float:
    """L2 norm over the layers that have one, without overflow; 0 where none has."""
    known = norms[~np.isnan(norms)]
    scale = float(known.max(initial=0.0))
    if scale == 0.0 or math.isinf(scale):
        return scale
    return scale * float(np.sqrt(np.square(known / scale).sum()))


def _log_norm(logs: Floats) -> float:
    """Log of the L2 norm of numbers given as logs."""
    top = float(logs.max())
    shares = np.exp(logs - top)
    return top + 0.5 * math.log(float(shares @ shares))
