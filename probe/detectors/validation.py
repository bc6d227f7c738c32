"""A validation loss that is NaN or infinite while the training loss is not.

Called on the training thread with samples.
"""

from __future__ import annotations

import math
from typing import Final

from .base import Finding
from .nonfinite import spell
from .overfitting import NAMES
from .sample import Sample, Succession

_OWN: Final = NAMES[-1]
MIN_FINITE: Final = 2
"""Finite values in a row before a NaN that a script logs counts: many log NaN at the steps at which they do
not evaluate, and then there is one between the first two."""
_ADVICE: Final = (
    "Training may be healthy: look at what evaluation alone uses, such as running statistics of "
    "normalisation layers, a split without samples, or a batch that is only in this split.",
    "Find the first bad batch of the split: `torch.isfinite(x).all()` of its inputs, then of the outputs.",
)


class ValidationDetector:
    """Emits `nonfinite_loss`, a warning: nothing is trained by an evaluation, so that the run is not ruined.

    What the probe has found itself counts from the first evaluation on; what the script logs after
    `MIN_FINITE` finite values. Said once until it is finite again.
    """

    def __init__(self) -> None:
        self._succession = Succession()
        self._finite: dict[str, int] = {}
        """Values in a row up to the newest, by name; -1: some are NaN on purpose."""
        self._last: tuple[int, float] | None = None
        self._is_said = False

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding where the validation loss of this step is not finite."""
        if self._succession.begins_anew(sample):
            self._finite.clear()
            self._last, self._is_said = None, False
        name = next((name for name in NAMES if name in sample.scalars), None)
        if name is None:
            return []
        value = sample.scalars[name]
        known = self._finite.get(name, 0)
        if math.isfinite(value):
            self._finite[name] = known + 1 if known >= 0 else -1
            self._last, self._is_said = (sample.step, value), False
            return []
        if name != _OWN and known < MIN_FINITE:
            self._finite[name] = -1
            return []
        if self._is_said:
            return []
        self._is_said = True
        return [self._finding(name, value, sample.step)]

    def _finding(self, name: str, value: float, step: int) -> Finding:
        shown = name.removeprefix("log/")
        last = "" if self._last is None else f"; it was {self._last[1]:.4g} at step {self._last[0]}"
        return Finding(
            kind="nonfinite_loss",
            severity="warning",
            subject=shown,
            message=f"`{shown}` is {spell(value)} at step {step}, though the training goes on{last}",
            value=value,
            threshold=None,
            baseline=None if self._last is None else {"last_finite": self._last[1]},
            neighbours=() if self._last is None else (self._last,),
            advice=_ADVICE,
        )
