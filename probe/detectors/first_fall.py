"""How a run's loss fell when it began: what a loss that falls "as before" is compared with.

Keeps the lows that the loss has reached, each with the number of the step, and no series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

FIRST: Final = 3
"""Losses whose median is where the run began."""
_LOWER: Final = 0.98
"""A low counts from so much below the last one on: a few hundred of them are kept at most."""
LEAST_FALL: Final = 3.0
"""Times by which the loss must have fallen for its pace to be known."""


class FirstFall:
    """The lows of a loss that is above 0, and when each was reached; nothing of one that is not."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._lows: list[tuple[int, float]] = []
        self._count = 0
        self._last = math.inf
        self._is_positive = True

    @property
    def start(self) -> float | None:
        """Where the run began; None while that is not known, or where losses may be 0 or negative."""
        return median(self._first) if self._is_positive and len(self._first) == FIRST else None

    def learn(self, losses: Sequence[float]) -> None:
        """Take losses in their order, all finite."""
        if not losses or not self._is_positive:
            return
        if len(self._first) < FIRST:
            self._first.extend(losses[: FIRST - len(self._first)])
        limit = _LOWER * self._lows[-1][1] if self._lows else math.inf
        least = min(losses)
        self._is_positive = least > 0.0
        if least < limit:
            self._note_lows(losses, limit)
        self._count += len(losses)
        self._last = losses[-1]

    def _note_lows(self, losses: Sequence[float], limit: float) -> None:
        last = self._last
        for at, loss in enumerate(losses):
            # Of two in a row the higher one: a single batch may be an easy one.
            low = max(last, loss)
            if low < limit:
                self._lows.append((self._count + at, low))
                limit = _LOWER * low
            last = loss

    def half_fall(self, level: float) -> int | None:
        """Return after how many steps half of the way from the start to a level was made, in factors.

        None where the loss has not fallen enough to say.
        """
        start = self.start
        if start is None or level <= 0.0 or start < LEAST_FALL * level:
            return None
        half = math.sqrt(start * level)
        return next((at for at, low in self._lows if low <= half), None)
