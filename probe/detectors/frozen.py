"""Modules that are frozen though an optimizer holds them, and that never learnt anything: a mistake.

What is fine-tuned is often frozen with the optimizer holding everything, but has been trained before. Told by
`probe/loop/frozen_modules.py` what is frozen and still has the values of its initialisation.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import Finding
from .cause_advice import FROZEN
from .layers import in_words
from .sample import Sample


class FrozenDetector:
    """Emits `parameter_not_updated` once: a warning; information where the first modules alone are frozen.

    Those look like gradual unfreezing, which begins with all but the last layer frozen though the optimizer
    holds everything, and like random features: both are meant.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._step = self._steps = 0
        self._are_first = False
        self.has_news = False

    def note(self, step: int, steps: int, names: Sequence[str], *, are_first: bool) -> None:
        """These modules were frozen and unchanged in so many steps; are they the first ones?"""
        self._names, self._step, self._steps, self._are_first = tuple(names), step, steps, are_first
        self.has_news = bool(names)

    def observe(self, sample: Sample) -> list[Finding]:
        """Return the finding when there is one."""
        if not self.has_news:
            return []
        self.has_news = False
        names = [in_words(name) for name in self._names]
        more = f"; the same of {', '.join(names[1:4])}" if len(names) > 1 else ""
        return [
            Finding(
                kind="parameter_not_updated",
                severity="info" if self._are_first else "warning",
                subject=self._names[0],
                message=f"{names[0]} is frozen (requires_grad is False), though an optimizer holds it, and "
                f"still has the random values of its initialisation after {self._steps} steps, at step "
                f"{self._step}: it does not learn{more}",
                value=float(len(names)),
                threshold=0.0,
                baseline={"steps": float(self._steps)},
                affected=self._names,
                advice=FROZEN,
            )
        ]
