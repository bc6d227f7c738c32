"""Accumulated gradient: the gradients are not cleared between two updates (a forgotten `zero_grad`).

No norm proves it, so it is not guessed from norms: the probe says after every update whether the gradients
had been cleared since the one before, which `.grad` itself tells (see `probe/loop/gradient_clearing.py`).
"""

from __future__ import annotations

from .base import Finding
from .sample import Sample
from .sampled_thresholds import SampledThresholds


class AccumulationDetector:
    """Emits `accumulated_gradient`, a warning.

    Several backwards before one update are gradient accumulation; what counts is that nothing was cleared
    from one update to the next. A single time (a warm-up step, say) is no fault. Each optimizer counts by
    itself, for each has to clear its own gradients.
    """

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._patience = thresholds.accumulated_steps
        self._runs: dict[str, int] = {}
        self._step = -1

    def note(self, step: int, *, cleared: bool | None, subject: str) -> None:
        """Account for one update.

        Args:
            step: number of the step that ends with it.
            cleared: whether the gradients were cleared since the update before; None when unknown.
            subject: the parameter whose gradient tells so; stands for its optimizer.
        """
        if step < self._step:
            self._runs.clear()
        self._step = step
        if cleared:
            self._runs.pop(subject, None)
        elif cleared is False:
            self._runs[subject] = self._runs.get(subject, 0) + 1

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding while some optimizer's gradients are never cleared."""
        late = {subject: run for subject, run in self._runs.items() if run >= self._patience}
        if not late:
            return []
        subject, run = max(late.items(), key=lambda item: item[1])
        return [
            Finding(
                kind="accumulated_gradient",
                severity="warning",
                subject=subject,
                message=f"The gradients were not cleared before the last {run} updates up to step "
                f"{self._step}: each update is made with the sum over all steps so far",
                value=float(run),
                threshold=float(self._patience),
                affected=tuple(late),
            )
        ]
