"""Which units of each module have given nothing but zeros for a while. Numbers only."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

DEAD_AFTER = 10
"""Sampled steps in a row with no element other than 0."""


@cache
def all_active(units: int) -> npt.NDArray[np.bool_]:
    """Return (units,) True, the same array each time: most modules have no other, and it takes no time."""
    result = np.ones(units, dtype=np.bool_)
    result.flags.writeable = False
    return result


class DeadUnits:
    """Counts, for every unit of every module, the sampled steps since it was last active.

    Args:
        window: a unit is dead after this many steps without activity; nothing is said of a module before it
            has been seen that often.
    """

    def __init__(self, window: int = DEAD_AFTER) -> None:
        self._window = window
        self._units: dict[int, int] = {}
        self._idle: dict[int, npt.NDArray[np.uint32]] = {}
        """Of modules with units that were not active the last time."""
        self._seen: dict[int, int] = {}

    def note(self, module: int, active: npt.NDArray[np.bool_]) -> int | None:
        """Take one step's (units,) activity; returns the number of dead units, None while it is too early."""
        units, idle = self._units.get(module), self._idle.get(module)
        if units != len(active):
            self._units[module], self._seen[module], idle = len(active), 0, None
        seen = self._seen[module] = self._seen[module] + 1
        if active is all_active(len(active)):
            self._idle.pop(module, None)
            return 0 if seen >= self._window else None
        if idle is None:
            idle = self._idle[module] = np.zeros(len(active), dtype=np.uint32)
        idle += 1
        idle[active] = 0
        return int((idle >= self._window).sum()) if seen >= self._window else None

    def forget(self) -> None:
        """Begin anew: the rows stand for other modules now."""
        self._units.clear()
        self._idle.clear()
        self._seen.clear()
