"""How much of what was low has come back: what falls and returns by itself is not lost when it falls again.

Used by `gradients.py`, on the training thread. Batches of one or two samples of a task that is nearly learnt
have next to no gradient at one step and the usual one at the next; a fault that takes the gradient keeps it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import Floats
from .baselines import WINDOW


class Returns:
    """Low steps that each of many series (rows) came back from, forgotten at the pace of the window.

    Args:
        rows: how many series.
        steps: low steps in a row that a loss takes where none has come back.
    """

    def __init__(self, rows: int, *, steps: int) -> None:
        self._steps = steps
        self._low: npt.NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        """Low steps since the row was last at its usual level."""
        self._back: Floats = np.zeros(rows)
        self._back_at: Floats = np.zeros(rows)
        self._last_low = 0
        self.waits = False
        """Whether a row that was low may come back: then every step is to be noted."""

    def note(self, low: npt.NDArray[np.bool_], usual: npt.NDArray[np.bool_], healthy: int) -> None:
        """Take one step: which rows are low, and which at their usual level.

        Args:
            low: (rows,) flags.
            usual: (rows,) flags; a row may be neither.
            healthy: how many steps were learnt so far, the clock by which rows forget.
        """
        if low.any():
            self._low += low
            self._last_low = healthy
        elif healthy - self._last_low > WINDOW:
            self._low[:] = 0
        back = np.flatnonzero(usual & (self._low > 0))
        if len(back):
            kept, low_steps = self._kept(healthy)[back], self._low[back]
            # What was low for so long that it was told of has not come back by itself.
            self._back[back] = kept + np.where(low_steps < self._steps * (1.0 + kept), low_steps, 0)
            self._back_at[back] = healthy
            self._low[back] = 0
        self.waits = bool(self._low.any())

    def patience(self, healthy: int) -> Floats:
        """(rows,) low steps in a row that a loss takes: `steps`, and as many for each that came back."""
        patience: Floats = self._steps * (1.0 + self._kept(healthy))
        return patience

    def _kept(self, healthy: int) -> Floats:
        kept: Floats = self._back * np.exp((self._back_at - healthy) / WINDOW)
        return kept
