"""What an event that is open explains: later non-finite values, and a high rate of steps with a warning.

A fault that lasts shows in several ways, and each would be an event that says nothing new. Used by
`incidents.py`, under its lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..detectors.base import Finding, Observation
from ..detectors.episodes import EpisodeTracker
from ..wire import Event

NONFINITE: Final = ("nonfinite_loss", "nonfinite_gradient", "nonfinite_parameter")
_STEPS_KEPT: Final = 4096
MOST_OF_THEM: Final = 0.5
"""An event explains a high rate if so many of the steps with a warning are its own."""


def fold_nonfinite(
    findings: list[Finding], observation: Observation, *, episodes: EpisodeTracker, model: str
) -> list[Finding]:
    """Count what an earlier NaN or Inf has done to the parameters as steps of its own event.

    Args:
        findings: of this step.
        observation: the step; without bad parameters nothing of it is taken for a consequence.
        episodes: those of the steps' detectors.
        model: name of the naming root.
    """
    if observation.parameter_norm is None or np.isfinite(observation.parameter_norm).all():
        return findings
    running = [event for kind in NONFINITE if (event := episodes.running(model, kind)) is not None]
    first = min(running, key=lambda event: event.step, default=None)
    if first is None or first.step >= observation.step:
        return findings
    own = {event.kind for event in running}
    return [
        replace(finding, kind=first.kind)
        if finding.kind in NONFINITE and finding.kind not in own
        else finding
        for finding in findings
    ]


class WarnedSteps:
    """Which events the newest steps with a warning belong to."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, tuple[str, ...]]] = deque(maxlen=_STEPS_KEPT)

    def note(self, step: int, findings: Sequence[Finding], events: Collection[Event | None]) -> None:
        """Keep which of the running events have counted a step.

        Args:
            step: its number.
            findings: of it.
            events: running ones of the findings' kinds.
        """
        if self._steps and step < self._steps[-1][0]:
            self._steps.clear()  # they come again
        if any(finding.severity != "info" for finding in findings):
            self._steps.append((step, tuple(event.id for event in events if event is not None)))

    def are_explained(self, first: int, last: int) -> bool:
        """Whether one event has at least half of the steps with a warning from `first` to `last`."""
        chosen = [events for step, events in self._steps if first <= step <= last]
        counts = Counter(event for events in chosen for event in events)
        return bool(chosen) and max(counts.values(), default=0) >= MOST_OF_THEM * len(chosen)
