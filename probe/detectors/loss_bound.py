"""A loss below its lower bound: the loss function is given targets that it does not expect.

`binary_cross_entropy_with_logits` of targets between 0 and 1 is never negative; of labels 1 and 2, or of an
image with values to 255, it falls without end, and nothing is learnt. So does `kl_div` of scores in place of
log-probabilities. Which function made the loss is read from its graph in the first steps, and once more
before anything is said: some trainings change their loss.
"""

from __future__ import annotations

from typing import Final

from .base import Finding, Observation, ObservationBatch
from .cause_advice import LOSS_BOUND

LOOKS: Final = 5
"""Looks that must have shown the same function; so must all others."""
EARLY: Final = 64
"""First backwards that are looked at: steps may be judged a while after their backward."""
LASTING: Final = 5
"""Losses in a row below the bound."""
MARGIN: Final = 1e-3
"""Of the highest loss so far: rounding may bring a loss that is 0 below it."""
_TARGETS: Final = (
    "targets between 0 and 1",
    "Targets outside of that let it fall without end: look at their values",
)
"""What a function expects, and what to do."""
_IN_WORDS: Final = {
    "kl_div": (
        "log-probabilities as its first argument",
        "What a layer returns as it is lets it fall without end: put a log_softmax before it",
    )
}


class LossBoundDetector:
    """Emits `loss_divergence`, a warning, at every step with a negative loss of a function that has none.

    Told by `note` which function made a loss. `is_in_doubt` may be read from any thread.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._function = ""
        self._highest = 0.0
        self._below = 0
        self._first_below: tuple[int, float] = (0, 0.0)
        self._looked_at = -1
        """Step of the newest look."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether a loss is below the bound of a function that may not be the one that made it."""
        return bool(self._function) and self._below >= LASTING - 1 and not self._is_confirmed

    @property
    def wants_look(self) -> bool:
        """Whether the next loss is to be looked at: in the first steps, and where it is below the bound."""
        return self._looks < EARLY or self.is_in_doubt

    @property
    def _is_confirmed(self) -> bool:
        return self._looks >= LOOKS and self._looked_at >= self._first_below[0]

    def note(self, step: int, function: str | None) -> None:
        """Take which function without negative values made a loss; None: another one, or not known."""
        self._looks, self._looked_at = self._looks + 1, step
        if self._looks == 1:
            self._function = function or ""
        elif function != self._function:
            self._function = ""

    def observe(self, observation: Observation) -> list[Finding]:
        """Return a finding while the loss is below its bound."""
        loss = observation.loss
        if loss is None or not self._function:
            return []
        if not self._is_below(float(loss)):
            self._highest = max(self._highest, float(loss))
            self._below = 0
            return []
        if not self._below:
            self._first_below = (observation.step, float(loss))
        self._below += 1
        if self._below < LASTING or not self._is_confirmed:
            return []
        return [self._finding(observation.step, float(loss))]

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Pass steps none of whose losses is below the bound."""
        if not self._function:
            return True
        losses = [float(loss) for loss in batch.losses if loss is not None]
        if self._below or any(map(self._is_below, losses)):
            return False
        self._highest = max([self._highest, *losses])
        return True

    def _is_below(self, loss: float) -> bool:
        return loss < -MARGIN * self._highest

    def _finding(self, now: int, loss: float) -> Finding:
        step, first = self._first_below
        expected, advice = _IN_WORDS.get(self._function, _TARGETS)
        return Finding(
            kind="loss_divergence",
            severity="warning",
            subject="loss",
            message=f"Loss {loss:.4g} at step {now} is below 0, where {self._function} cannot be with "
            f"{expected}; it has been below since step {step} ({first:.4g}). {advice}",
            value=loss,
            threshold=0.0,
            baseline={"highest": self._highest},
            neighbours=(self._first_below,),
            advice=LOSS_BOUND,
        )
