"""Absolute limits on gradient norms, for those who know what theirs should be; off unless options set them.

Called on the training thread once per step, from the first step on: they need no history.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from .base import DetectorThresholds, Finding, Floats, Observation, ObservationBatch
from .gradient_baseline import l2_norm
from .layers import LayerIndex, and_more, in_words
from .nonfinite import NEIGHBOURS, has_nonfinite_gradient

SLACK = 1e-9
"""Relative distance from a limit at which a batch is judged step by step."""


class AbsoluteLimitDetector:
    """Emits `gradient_explosion` and `gradient_vanishing`, warnings, where a norm passes a fixed limit."""

    def __init__(self, thresholds: DetectorThresholds) -> None:
        self._above = thresholds.explosion_norm
        self._below = thresholds.vanishing_norm
        self._patience = thresholds.vanishing_steps
        self._index = LayerIndex()
        self._recent: deque[tuple[int, Floats]] = deque(maxlen=NEIGHBOURS)
        self._run: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._step = -1

    def observe(self, observation: Observation) -> list[Finding]:
        """Return at most one explosion and one vanishing."""
        if observation.grad_norm is None:
            return []
        self._index.update(observation, self._begin, is_again=observation.step < self._step)
        self._step = observation.step
        if has_nonfinite_gradient(observation):
            return []
        with np.errstate(all="ignore"):
            norms = self._index.norms(observation)
            findings = (self._explosion(observation, norms), self._vanishing(observation, norms))
        self._recent.append((observation.step, norms))
        return [finding for finding in findings if finding is not None]

    def _begin(self) -> None:
        self._run = np.zeros(len(self._index.layers), dtype=np.int64)
        self._recent.clear()

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Pass steps that stay clear of both limits."""
        if not self._index.is_of(batch) or batch.steps[0] < self._step or not len(self._index.layers):
            return False
        if any(total is None or not np.isfinite(total) for total in batch.total_grad_norms):
            return False
        norms = self._index.norms_of(batch)
        if self._above is not None and max(map(l2_norm, norms)) > self._above * (1.0 - SLACK):
            return False
        if self._below is not None:
            if (norms[norms > 0.0] < self._below).any():
                return False
            self._run[(norms > 0.0).any(axis=0)] = 0
        self._recent.extend(list(zip(batch.steps, norms, strict=True))[-NEIGHBOURS:])
        self._step = batch.steps[-1]
        return True

    def _explosion(self, observation: Observation, norms: Floats) -> Finding | None:
        total = l2_norm(norms)
        if self._above is None or not total > self._above:
            return None
        worst = int(np.nanargmax(norms))
        over = np.flatnonzero(norms > self._above)
        subject = self._index.name(observation, worst)
        return Finding(
            kind="gradient_explosion",
            severity="warning",
            subject=subject,
            message=f"Gradient norm {total:.4g} at step {observation.step} is above the limit "
            f"{self._above:.4g} (`explosion_norm`), largest in {in_words(subject)} ({norms[worst]:.4g})",
            value=total,
            threshold=self._above,
            neighbours=tuple((step, l2_norm(earlier)) for step, earlier in self._recent),
            affected=self._names(observation, over if len(over) else np.array([worst])),
        )

    def _vanishing(self, observation: Observation, norms: Floats) -> Finding | None:
        if self._below is None:
            return None
        is_low = (norms > 0.0) & (norms < self._below)
        self._run[(norms > 0.0) & ~is_low] = 0
        self._run += is_low
        late = np.flatnonzero(is_low & (self._run >= self._patience))
        if not len(late):
            return None
        worst = int(late[np.argmin(norms[late])])
        subject = self._index.name(observation, worst)
        return Finding(
            kind="gradient_vanishing",
            severity="warning",
            subject=subject,
            message=f"Gradient norm {norms[worst]:.4g} of {in_words(subject)}{and_more(len(late) - 1)} "
            f"at step {observation.step} is below the limit {self._below:.4g} (`vanishing_norm`), "
            f"for {int(self._run[worst])} steps in a row",
            value=float(norms[worst]),
            threshold=self._below,
            neighbours=tuple(
                (step, float(earlier[worst])) for step, earlier in self._recent if earlier[worst] >= 0.0
            ),
            affected=self._names(observation, late),
        )

    def _names(self, observation: Observation, rows: npt.NDArray[np.intp]) -> tuple[str, ...]:
        return tuple(self._index.name(observation, int(row)) for row in rows)
