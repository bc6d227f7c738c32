"""How far a series' ordinary values reach, beyond what a window of recent ones can show; for `loss.py`.

A limit in MADs is passed once in 10^15 values of normal noise and once in 700 of Student's t with three
degrees of freedom. The tail is taken for a power law (Pareto), fitted where it can be seen: at a quarter and
at half of the limit (Hill, "A simple general approach to inference about the tail of a distribution",
Annals of Statistics 3, 1975, has the fit by order statistics).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

GENERATION: Final = 1024
"""Values after which the older half of what is known is forgotten."""
RATE: Final = 2e-5
"""How often ordinary values may pass a limit."""
LARGEST_FACTOR: Final = 20.0


class Tail:
    """Counts of ordinary values above a quarter and above half of the limit of their time."""

    def __init__(self) -> None:
        self._counts = [(0, 0, 0), (0, 0, 0)]
        """(values, above a quarter, above half): of the generation before, and of this one."""

    def learn(self, value: float, median: float, jump: float) -> None:
        """Account for an ordinary value that was judged by `median + jump`."""
        count, quarter, half = self._counts[1]
        above = value - median
        newest = count + 1, quarter + (above > jump / 4.0), half + (above > jump / 2.0)
        self._counts[1] = newest
        if newest[0] >= GENERATION:
            self._counts = [newest, (0, 0, 0)]

    def extend(self, values: Sequence[float], median: float, jump: float) -> None:
        """The same for successive values."""
        room = GENERATION - self._counts[1][0]
        if len(values) < room and (not values or max(values) - median <= jump / 4.0):
            count, quarter, half = self._counts[1]
            self._counts[1] = count + len(values), quarter, half
            return
        for value in values:
            self.learn(value, median, jump)

    def factor(self) -> float:
        """How many times as far as the jump ordinary values reach; at least 1."""
        (n0, q0, h0), (n1, q1, h1) = self._counts
        count, quarter, half = n0 + n1, q0 + q1, h0 + h1
        if not half or quarter <= half:
            return 1.0
        index = math.log2(quarter / half)
        passed = half / count * half / quarter
        # By logarithms: where nearly all values are far out the power itself would overflow.
        exponent = math.log(passed / RATE) / index
        return math.exp(min(max(exponent, 0.0), math.log(LARGEST_FACTOR)))
