"""Level basic looks closer for a few steps when a detector has found or suspects something: what, how long.

Used by the step measures on the training thread. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..settings.levels import Settings

STEPS: Final = 20
"""How long a closer look takes."""
_PAUSE_STEPS: Final = 500
_MOST: Final = 20
"""Steps from the beginning of one look to that of the next at least, and how many a run may take."""
_DENSE: Final = {"activations": 2, "activation_gradients": 2, "update_ratios": 5}


class CloserLook:
    """When to measure as level advanced does, on a run whose level is basic.

    Attributes:
        until: first step after the look under way; None when there is none.
    """

    def __init__(self) -> None:
        self.until: int | None = None
        self._next = 0
        self._taken = 0

    def begin(self, step: int, asked_for: Settings) -> Settings | None:
        """Something is suspicious (an event, a jump): return the settings for the next steps, if others.

        Args:
            step: the step that has just ended.
            asked_for: the settings that the user has chosen; only plain level basic is raised.
        """
        if self.until is not None or step < self._next or self._taken >= _MOST:
            return None
        if asked_for.level != "basic" or asked_for.preset is not None:
            return None
        self._taken += 1
        self._next, self.until = step + _PAUSE_STEPS, step + 1 + STEPS
        overrides = {**_DENSE, **asked_for.overrides}
        # Too short for the budget to judge; what the run cannot afford at all is not begun.
        return replace(asked_for, level="advanced", overrides=overrides, overhead_limit=0.0)

    def is_over(self, step: int) -> bool:
        """Whether the look under way ends with `step`."""
        if self.until is None or step + 1 < self.until:
            return False
        self.until = None
        return True
