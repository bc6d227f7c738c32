"""Predictions and targets whose shapes do not match: broadcast, every prediction meets every target."""

from __future__ import annotations

from typing import Final

from .base import Finding
from .cause_advice import BROADCAST
from .sample import Sample

LOOKS: Final = 5
"""Backwards that are looked at ..."""
AGREEING: Final = 3
"""... and how many of them must show it."""
Shape = tuple[int, ...]


class LossShapeDetector:
    """Emits `output_degenerate`, a warning: a loss over all pairs is least where all outputs are the mean.

    Told by `note` what the graph of a loss says.
    """

    def __init__(self) -> None:
        self._looks = self._count = 0
        self._shapes: tuple[Shape, Shape] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be told."""
        return self._looks >= LOOKS

    def note(self, shapes: tuple[Shape, Shape] | None) -> None:
        """Take the shapes of the predictions and of what they were broadcast to; None: they were not."""
        self._looks += 1
        if shapes is not None:
            self._count += 1
            self._shapes = shapes

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding once enough losses were made in this way."""
        if self._shapes is None or self._count < AGREEING:
            return []
        predictions, pairs = self._shapes
        target = (pairs[0],) if len(predictions) > 1 else (pairs[0], 1)
        return [
            Finding(
                kind="output_degenerate",
                severity="warning",
                subject="loss",
                message=f"The loss compares every prediction with every target: predictions of shape "
                f"{predictions} and targets of shape {target} are broadcast to {pairs}, so that the model "
                "can learn no more than the mean of the targets",
                value=float(pairs[0] * pairs[1]),
                threshold=float(pairs[0]),
                advice=BROADCAST,
            )
        ]
