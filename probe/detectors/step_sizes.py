"""How much larger a step is than the first ones: an episode of more moves, a batch of more samples. Pure.

A loss that is summed over the step grows with it, and what judges a loss by how it has risen divides by this.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 10


class StepSizes:
    """Follows the elements of the first inputs of a step's forwards.

    Args:
        first: steps, the largest of which is the reference.
    """

    def __init__(self, *, first: int = FIRST) -> None:
        self._count, self._largest, self._first = 0, 0, first

    def growth(self, elements: int) -> float:
        """Account for a step; returns how many times as large it is as the first ones, at least 1.

        Args:
            elements: of the step; 0 where they are not known.
        """
        if self._count < self._first:
            self._count += 1
            self._largest = max(self._largest, elements)
        return max(elements / self._largest, 1.0) if self._largest else 1.0
