"""Notices within a few steps that the probe takes far more than its limit: long before a window is full.

Used by the budget, with what every step took. Pure; reads no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from .throttle import Load

_OVERSPENT_STEPS: Final = 8
"""What the limit allows for so many steps may be spent beyond it before anyone looks."""
_FAR_ABOVE: Final = 2.0
"""So many times what the limit allows is far too much; less is left to a look at a whole window."""
_RECENT: Final = 16
_AGREEING: Final = 3
"""Of so many newest measurements of a feature, or the two that there are, the cheapest is believed: a single
dear one may have been interrupted, by the garbage collector for instance."""
_LONGEST_WAIT: Final = 31


class Alarm:
    """Adds up what is spent beyond a limit.

    Args:
        limit: largest share of a step that the probe may take, as a fraction; with 0 or 1 there is no alarm.
    """

    def __init__(self, limit: float) -> None:
        # Of the training's time, not of the step's, in which the probe's own is contained.
        self._allowed = limit / (1.0 - limit) if 0.0 < limit < 1.0 else 0.0
        self._training_ns: deque[int] = deque(maxlen=_RECENT)
        self.settle()

    def settle(self) -> None:
        """Something was done about it: what has been overspent so far is forgotten."""
        self._overspent_ns = 0.0
        self._wait = self._until_ready = 0

    def note(self, training_ns: int, spent_ns: int, *, steps: int = 1) -> bool:
        """Take the times of equal steps; returns whether what is spent should be looked at now."""
        self._training_ns.extend([training_ns] * min(steps, _RECENT))
        allowed_ns = self._allowed * training_ns
        self._overspent_ns = max(self._overspent_ns + steps * (spent_ns - allowed_ns), 0.0)
        if self._until_ready:
            self._until_ready = max(self._until_ready - steps, 0)
            return False
        if not self._allowed or self._overspent_ns <= _OVERSPENT_STEPS * allowed_ns:
            return False
        # Where nothing comes of it, looking at every step would itself be dear.
        self._wait = min(2 * self._wait + 1, _LONGEST_WAIT)
        self._overspent_ns, self._until_ready = 0.0, self._wait
        return True

    def load(self, costs_ns: Mapping[str, Sequence[int]], base_ns: float) -> Load:
        """Return what the newest steps at least take.

        Args:
            costs_ns: of each feature, what its measurements took, at least two.
            base_ns: the probe's own time that no feature accounts for.
        """
        return Load(
            training_ns=statistics.median(self._training_ns),
            base_ns=base_ns,
            costs_ns={name: min(costs[-_AGREEING:]) for name, costs in costs_ns.items()},
        )

    def is_far_above(self, load: Load, periods: Mapping[str, int]) -> bool:
        """Whether that is so much that it must not wait."""
        return load.own_ns(periods) > _FAR_ABOVE * self._allowed * load.training_ns
