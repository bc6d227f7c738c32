"""Zero gradient: a layer takes part in backward, yet its gradient is exactly 0 step after step.

A dead ReLU, a detached branch, a saturated clamp, an underflow in half precision. Called on the training
thread once per step.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import DetectorThresholds, Finding, Floats, Observation, ObservationBatch
from .layers import LayerIndex, and_more, in_words
from .nonfinite import has_nonfinite_gradient

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
RUN_FACTOR: Final = 3
"""A layer that has been zero before must stay zero this many times longer than ever."""
NEVER_FACTOR: Final = 3
LIVE_FACTOR: Final = 1.5
SILENT_STEPS: Final = 50
"""Steps from the first one on at which the loss and all gradients are exactly 0. A term that a schedule
switches on later has the weight 0 in the graph and is excused; a margin that all samples keep from the first
step on is kept by a model that has learned nothing, so that the loss cannot teach it anything either."""
LOG_CHANCE: Final = 20.7
"""A layer that has a gradient in a share p of its steps only (an expert in a mixture) is zero n times in a
row with probability (1 - p)^n; the finding waits until that is below exp(-20.7), one in 1e9."""
_SILENT_ADVICE: Final = (
    "Print one sample's loss and what it is computed from (lengths, mask, targets) before the first step.",
    "A loss that is 0 for every sample has no gradient: raise its margin, or fix the mask or the targets.",
)


class ZeroGradientDetector:
    """Emits `zero_gradient`, a warning. Judged per layer: single parameters are zero for good reasons.

    A bias in front of a normalisation or of a softmax, a scale behind a zero-initialised gate and a frozen
    tensor have no gradient to speak of while their layer learns. A layer that was never anything but zero
    is reported after three times `warmup_steps` only: zero-initialised branches (LoRA, ReZero) begin with
    exact zeros and leave them at the first update that a warming-up learning rate allows. Where every group
    is known to have had a learning rate for `LIVE_FACTOR` times `zero_steps` steps, and no layer's gradient
    comes and goes, that update has been made, and nothing is waited for.
    """

    def __init__(self, thresholds: DetectorThresholds) -> None:
        self._thresholds = thresholds
        self._index = LayerIndex()
        self._step = -1
        self._run: Counts = np.zeros(0, dtype=np.int64)
        self._longest: Counts = np.zeros(0, dtype=np.int64)
        self._alive: Counts = np.zeros(0, dtype=np.int64)
        self._zero: Counts = np.zeros(0, dtype=np.int64)
        self._observed = self._live = 0
        self._comes_and_goes = self._is_excused = False
        self._silent = 0
        """Steps whose loss and gradients were 0, before any others."""
        self._first_silent = 0
        self._cause = ""

    def note_cause(self, cause: str) -> None:
        """Of the first losses: what in their graph may make them 0, as a sentence."""
        self._cause = self._cause or cause

    def excuse(self) -> None:
        """A term of the loss has the weight 0: what never had a gradient may well be what feeds it."""
        self._is_excused = True

    def observe(self, observation: Observation) -> list[Finding]:
        """Return at most one finding: all layers that have been zero for too long."""
        if observation.grad_norm is None:
            return []
        self._index.update(observation, self._reset, is_again=observation.step < self._step)
        self._step = observation.step
        if has_nonfinite_gradient(observation):
            return []  # clipping by an infinite norm turns all the other gradients into exact zeros
        zero, alive = self._zero_and_alive(observation)
        self._comes_and_goes |= bool((zero & (self._alive > 0)).any())
        if observation.loss == 0.0 and not alive.any():
            return self._judge_silent(observation, zero)  # a margin loss that is satisfied says nothing
        np.maximum(self._longest, self._run, out=self._longest, where=alive)
        self._run += zero
        self._run[alive] = 0
        self._alive += alive
        self._zero += zero
        self._observed += 1
        self._live += bool(observation.lowest_rate)
        if not zero.any() or not (
            self._observed >= self._thresholds.warmup_steps or self._is_live(self._live)
        ):
            return []
        late = np.flatnonzero(zero & (self._run >= self._patience(is_live=self._is_live(self._live))))
        return [self._finding(observation, late)] if len(late) else []

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Learn steps in which every layer is either alive, or zero and still within its patience."""
        if not self._index.is_of(batch) or batch.steps[0] < self._step or not len(self._index.layers):
            return False
        totals = [total for total in batch.total_grad_norms if total is not None]
        if len(totals) < len(batch) or not all(map(math.isfinite, totals)):
            return False
        steps, size = len(batch), batch.grad_max_abs
        live = sum(map(bool, batch.lowest_rates))
        if batch.missing is None and size.min() > 0.0:
            self._learn_alive(steps, live)
            self._step = batch.steps[-1]
            return True
        present = np.ones(size.shape, dtype=np.bool_) if batch.missing is None else ~batch.missing
        alive_at = self._index.any(present & (size != 0.0))
        zero_at = self._index.any(present) & ~alive_at
        if not alive_at.any(axis=1).all():
            return False
        zero, alive = zero_at.sum(axis=0), alive_at.sum(axis=0)
        if ((zero > 0) & (alive > 0)).any():
            return False
        is_live = self._is_live(self._live + live)
        if zero.any() and (self._observed + steps >= self._thresholds.warmup_steps or is_live):
            # Zeros of an unbroken run do not change what the run is allowed.
            run_ends = np.where(zero > 0, self._run + zero, 0)
            if (run_ends >= self._patience(is_live=is_live)).any():
                return False
        self._learn_counts(zero, alive, steps, live)
        self._step = batch.steps[-1]
        return True

    def _learn_alive(self, steps: int, live: int) -> None:
        """Account for steps in which no layer was zero: what `_learn_counts` makes of them, by two calls."""
        if self._run.any():
            np.maximum(self._longest, self._run, out=self._longest)
            self._run[:] = 0
        self._alive += steps
        self._observed += steps
        self._live += live

    def _learn_counts(self, zero: Counts, alive: Counts, steps: int, live: int) -> None:
        """Account for steps in which no layer was zero at one and alive at another."""
        self._comes_and_goes |= bool(((zero > 0) & (self._alive > 0)).any())
        self._live += live
        is_alive = alive > 0
        np.maximum(self._longest, self._run, out=self._longest, where=is_alive)
        self._run += zero
        self._run[is_alive] = 0
        self._alive += alive
        self._zero += zero
        self._observed += steps

    def _judge_silent(self, observation: Observation, zero: Flags) -> list[Finding]:
        """Loss and gradients are 0: has the run never had anything else?"""
        if self._observed or not zero.any():
            return []
        if not self._silent:
            self._first_silent = observation.step
        self._silent += 1
        if self._silent < SILENT_STEPS or self._is_excused:
            return []
        cause = f". {self._cause}" if self._cause else ""
        return [
            Finding(
                kind="zero_gradient",
                severity="warning",
                subject="loss",
                message=f"The loss and every gradient are exactly 0 at all {self._silent} steps since step "
                f"{self._first_silent}, so nothing is learned{cause}",
                value=0.0,
                threshold=0.0,
                baseline={"steps": float(self._silent)},
                affected=tuple(self._index.name(observation, int(row)) for row in np.flatnonzero(zero)),
                advice=_SILENT_ADVICE,
            )
        ]

    def _reset(self) -> None:
        self._silent = 0
        rows = len(self._index.layers)
        self._run = np.zeros(rows, dtype=np.int64)
        self._longest = np.zeros(rows, dtype=np.int64)
        self._alive = np.zeros(rows, dtype=np.int64)
        self._zero = np.zeros(rows, dtype=np.int64)
        self._observed = self._live = 0
        self._comes_and_goes = False

    def _is_live(self, live: int) -> bool:
        """Whether so many steps with a learning rate show that what is zero will stay so."""
        return live >= LIVE_FACTOR * self._thresholds.zero_steps and not self._comes_and_goes

    def _zero_and_alive(self, observation: Observation) -> tuple[Flags, Flags]:
        """Split the layers that have a gradient; the largest element decides, for tiny norms underflow."""
        size = observation.grad_max_abs if observation.grad_max_abs is not None else observation.grad_norm
        assert size is not None
        if observation.missing is None or not observation.missing.any():
            alive = self._index.any(size != 0.0)
            return ~alive, alive
        present = ~observation.missing
        alive = self._index.any(present & (size != 0.0))
        return self._index.any(present) & ~alive, alive

    def _patience(self, *, is_live: bool) -> Floats:
        """Zero steps in a row that each layer is allowed."""
        options = self._thresholds
        share = self._alive / (self._alive + self._zero - self._run + 1.0)
        with np.errstate(divide="ignore"):
            by_chance = np.ceil(LOG_CHANCE / -np.log1p(-share))
        allowed = np.maximum(options.zero_steps + RUN_FACTOR * self._longest, by_chance)
        waiting = LIVE_FACTOR * options.zero_steps if is_live else NEVER_FACTOR * options.warmup_steps
        never = math.inf if self._is_excused else max(options.zero_steps, waiting)
        return np.where(self._alive > 0, allowed, never)

    def _finding(self, observation: Observation, late: npt.NDArray[np.intp]) -> Finding:
        names = tuple(self._index.name(observation, int(row)) for row in late)
        first, run = names[0], int(self._run[late[0]])
        since = "it was not before" if self._alive[late[0]] else "it has never been anything else"
        return Finding(
            kind="zero_gradient",
            severity="warning",
            subject=first,
            message=f"Gradient of {in_words(first)}{and_more(len(late) - 1)} is exactly 0 "
            f"at step {observation.step}, for {run} steps in a row; {since}",
            value=0.0,
            threshold=0.0,
            baseline={"steps": float(run)},
            affected=names,
        )
