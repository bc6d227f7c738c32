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
        self._units: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._seen: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._idle: dict[int, npt.NDArray[np.uint32]] = {}
        """Of modules with units that were not active the last time."""
        self._settled = b""
        """See `is_settled`."""

    def note(self, module: int, active: npt.NDArray[np.bool_]) -> int | None:
        """Take one step's (units,) activity; returns the number of dead units, None while it is too early."""
        idle = self._idle.get(module)
        is_late = self._count_one(module, len(active))
        if idle is None or len(idle) != len(active):
            idle = self._idle[module] = np.zeros(len(active), dtype=np.uint32)
        idle += 1
        idle[active] = 0
        return int((idle >= self._window).sum()) if is_late else None

    def note_active(
        self, modules: npt.NDArray[np.intp], units: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.float64]:
        """Take one step of modules whose units are all active; 0 for each, NaN while it is too early.

        Args:
            modules: (modules,) each once.
            units: (modules,) how many each has.
        """
        for module in self._idle.keys() & set(modules.tolist()):
            del self._idle[module]
        is_enough = self._count(modules, units)
        if len(modules) and is_enough.all():
            self._settled = modules.tobytes() + units.tobytes()
        return np.where(is_enough, 0.0, np.nan)

    def _count_one(self, module: int, units: int) -> bool:
        """Like `_count`, of one module: without arrays, which take longer."""
        self._make_room(module)
        if self._units[module] != units:
            self._units[module], self._seen[module] = units, 0
        self._seen[module] += 1
        return bool(self._seen[module] >= self._window)

    def _make_room(self, module: int) -> None:
        missing = module + 1 - len(self._units)
        if missing > 0:
            units = np.concatenate([self._units, np.full(missing, -1)])
            seen = np.concatenate([self._seen, np.zeros(missing, dtype=np.int64)])
            # Both or neither: a signal's handler may raise at any call.
            self._units, self._seen = units, seen

    def is_settled(self, given: bytes) -> bool:
        """Whether `note_active` was given these modules and units last, and would say 0 of each for ever.

        One of the two is to be asked at each step: else what `note` was told meanwhile would be forgotten.
        """
        return given == self._settled

    def _count(self, modules: npt.NDArray[np.intp], units: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Count one step more of each; returns whether it has been seen often enough."""
        self._settled = b""
        self._make_room(int(modules.max(initial=-1)))
        has_changed = self._units[modules] != units
        self._seen[modules] = np.where(has_changed, 0, self._seen[modules]) + 1
        self._units[modules] = units
        is_enough: npt.NDArray[np.bool_] = self._seen[modules] >= self._window
        return is_enough

    def forget(self) -> None:
        """Begin anew: the rows stand for other modules now."""
        self._units = np.zeros(0, dtype=np.int64)
        self._seen = np.zeros(0, dtype=np.int64)
        self._idle.clear()
        self._settled = b""
