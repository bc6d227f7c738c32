"""Learning rates that have decayed to nothing long before the run is over: a schedule in the wrong unit.

Called on the training thread once per step. A schedule that ends a run near 0 spends a small share of its
steps there; a decay by the epoch that is applied at every step spends nearly all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .base import Finding, Observation, ObservationBatch

LIVE_SHARE: Final = 1e-2
"""Of the highest learning rate so far: above it, the run learns."""
DEAD_SHARE: Final = 1e-4
"""At most this share of it: with the usual update ratio of 1e-3, nothing changes in float32's last digits."""
DEAD_STEPS: Final = 50
"""So many steps without effect at least, and as many as had one."""
CONVERGED: Final = 1e-3
"""Share of the first loss below which there is nothing left to learn."""


class DecayedRateDetector:
    """Emits `update_ratio_low`, a warning, of the learning rate alone."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._step = -1
        self._highest, self._highest_at = 0.0, 0
        self._live = self._dead = 0
        self._first_loss: float | None = None

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding while the learning rate has been next to nothing for too long."""
        if observation.step < self._step:
            self._reset()
        self._step = observation.step
        if self._first_loss is None:
            self._first_loss = observation.loss
        self._note(observation.step, observation.highest_rate)
        if not self._is_late() or self._has_converged(observation) or not observation.total_grad_norm:
            return []
        return [self._finding(observation)]

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn steps at none of which the learning rate has been next to nothing for too long."""
        if batch.steps[0] < self._step:
            return False
        if not self._note_usual(batch.highest_rates) and not self._note_each(batch):
            return False
        if self._is_late():
            return False
        if self._first_loss is None:
            self._first_loss = next((loss for loss in batch.losses if loss is not None), None)
        self._step = batch.steps[-1]
        return True

    def _note_usual(self, rates: Sequence[float | None]) -> bool:
        """Note rates none of which is the highest or next to nothing; nothing, and False, if one may be."""
        known = [rate for rate in rates if rate is not None]
        if not known or len(known) < len(rates) or max(known) > self._highest:
            return False
        lowest = min(known)
        if not (lowest > 0.0 and lowest >= LIVE_SHARE * self._highest):
            return False
        self._live, self._dead = self._live + len(known), 0
        return True

    def _note_each(self, batch: ObservationBatch) -> bool:
        """Note one rate after the other; nothing, and False, if they are next to nothing for too long."""
        before = self._highest, self._highest_at, self._live, self._dead
        for step, rate in zip(batch.steps, batch.highest_rates, strict=bool(batch.highest_rates)):
            self._note(step, rate)
            if self._is_late():
                self._highest, self._highest_at, self._live, self._dead = before
                return False
        return True

    def _note(self, step: int, rate: float | None) -> None:
        if rate is None:
            return
        rate = abs(rate)  # below 0 it goes uphill, and has an effect
        if rate > self._highest:
            self._highest, self._highest_at = rate, step
        if self._highest <= 0.0:
            return
        self._live += rate >= LIVE_SHARE * self._highest
        self._dead = self._dead + 1 if rate <= DEAD_SHARE * self._highest else 0

    def _is_late(self) -> bool:
        return self._dead >= max(DEAD_STEPS, self._live)

    def _has_converged(self, observation: Observation) -> bool:
        first, loss = self._first_loss, observation.loss
        return first is not None and loss is not None and abs(loss) <= CONVERGED * abs(first)

    def _finding(self, observation: Observation) -> Finding:
        rate = observation.highest_rate or 0.0
        return Finding(
            kind="update_ratio_low",
            severity="warning",
            subject="lr",
            message=f"The learning rate has decayed to {rate:.3g}, and has been below {DEAD_SHARE:g} of its "
            f"highest ({self._highest:.3g} at step {self._highest_at}) for {self._dead} steps, after "
            f"{self._live} steps in which it had an effect: nothing more is learnt",
            value=rate,
            threshold=DEAD_SHARE * self._highest,
            baseline={"highest": self._highest, "live_steps": float(self._live)},
        )
