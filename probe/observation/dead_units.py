"""Which units of each module have given nothing but zeros for a while. Numbers only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DEAD_AFTER = 20
"""Sampled steps in a row with no element other than 0."""


class DeadUnits:
    """Counts, for every unit of every module, the sampled steps since it was last active.

    Args:
        window: a unit is dead after this many steps without activity; nothing is said of a module before it
            has been seen that often.
    """

    def __init__(self, window: int = DEAD_AFTER) -> None:
        self._window = window
        self._idle: dict[int, npt.NDArray[np.uint32]] = {}
        self._seen: dict[int, int] = {}

    def note(self, module: int, active: npt.NDArray[np.bool_]) -> int | None:
        """Take one step's (units,) activity; returns the number of dead units, None while it is too early."""
        idle = self._idle.get(module)
        if idle is None or len(idle) != len(active):
            idle = self._idle[module] = np.zeros(len(active), dtype=np.uint32)
            self._seen[module] = 0
        idle += 1
        idle[active] = 0
        self._seen[module] += 1
        return int((idle >= self._window).sum()) if self._seen[module] >= self._window else None

    def forget(self) -> None:
        """Begin anew: the rows stand for other modules now."""
        self._idle.clear()
        self._seen.clear()
