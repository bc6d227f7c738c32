"""First loss: far above what a model gives that knows nothing, so its weights or inputs make huge scores.

A classifier that gives every class the same probability has a loss of log(classes). Weights of a sensible
size begin near it. Judged on the first losses of a run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .base import Finding
from .sample import Sample

FACTOR: Final = 20.0
"""Times the guess, for the logarithms of probabilities, which grow with the scores."""
LEAST: Final = 150.0
"""Below it lies what a margin and a scale of 64 reach with the worst of all scores, 2 * 64."""
SQUARED_FACTOR: Final = 1e4
"""The same for squared errors: outputs a hundred times as large as the targets ..."""
LEAST_OUTPUT: Final = 100.0
"""... and as this: small targets alone prove nothing."""
AGREEING: Final = 2
"""Losses, the first ones that are judged, that must all be so high."""


class Guess(NamedTuple):
    """What a loss function would return if the model knew nothing."""

    function: str
    """`cross_entropy`, `binary_cross_entropy_with_logits` or `mse_loss`."""
    loss: float
    """Its mean."""
    what: str
    """What such a model returns, in words."""
    output: float | None = None
    """Root mean square of what the model returned, where the function does not limit it."""


class FirstLossDetector:
    """Emits `poor_initialization`, a warning, once. Told by `note` what the graph of each loss says."""

    def __init__(self) -> None:
        self._guess: Guess | None = None
        self._seen = 0
        self._is_over = False

    def note(self, guess: Guess | None) -> None:
        """Take what the loss of a backward would be by guessing; None: not known, or of several terms."""
        if guess is None:
            self._is_over = True
        elif not self._seen:
            self._guess = guess

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding once the first losses are all far above the guess."""
        guess, loss = self._guess, sample.loss
        if self._is_over or guess is None or loss is None:
            return []
        self._seen += 1
        if not loss > _limit(guess):
            self._is_over = True
        if self._is_over or self._seen < AGREEING:
            return []
        self._is_over = True
        return [
            Finding(
                kind="poor_initialization",
                severity="warning",
                subject="loss",
                message=f"Loss {loss:.4g} at step {sample.step} is far above the {guess.loss:.3g} of "
                f"{guess.function} where {guess.what}, and was from the first step on: what the model "
                "returns is too large. Look at the standard deviation of its weights, and of its inputs",
                value=loss,
                threshold=_limit(guess),
                baseline={"guess": guess.loss},
            )
        ]


def _limit(guess: Guess) -> float:
    if guess.output is None:
        return max(FACTOR * guess.loss, LEAST)
    return SQUARED_FACTOR * guess.loss if guess.output >= LEAST_OUTPUT else float("inf")
