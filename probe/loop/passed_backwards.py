"""Backwards that only pass through a model, on their way to another one: a judge's, of a generator's loss.

Used by the training loop, on the training thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..step.open_step import OpenStep

_MOST_MISSED: Final = 9
"""Until then another model's updates may be all that the gradients were meant for."""
Pass = tuple[int, object]
"""Number and line of a backward."""


class PassedBackwards:
    """Learns which backwards are another model's, by what updates are made of them.

    What a model is trained by does not come from another module alone, or is sent back on other lines.
    """

    def __init__(self) -> None:
        self._has_inputs_of_its_own = False
        """Whether an update was made of forwards whose inputs no other module has made."""
        self._lines: set[object] = set()
        """Of backwards of which another model was updated."""
        self._own_lines: set[object] = set()
        """Of those of which this model was updated, since there are such others."""

    def note_own(self, opened: OpenStep, passes: Iterable[Pass]) -> None:
        """The model is updated of what these backwards left."""
        self._has_inputs_of_its_own |= bool(opened.captures) and not opened.is_fed
        if self._lines:
            self._own_lines.update(line for _, line in passes)

    def note_passed(self, opened: OpenStep) -> None:
        """What the open step's backwards left was not meant for this model."""
        self._lines.update(line for _, line in opened.passes)

    def are_all_of(self, opened: OpenStep) -> bool:
        """Whether the open step has no backward but such ones, as far as is known."""
        if self._has_inputs_of_its_own and opened.is_fed:
            return True
        if not (self._lines and opened.passes):
            return False
        lines = {line for _, line in opened.passes}
        return lines <= self._lines and lines.isdisjoint(self._own_lines)


class MissedSteps:
    """Counts steps without a frame of a model that was never updated, while others were."""

    def __init__(self) -> None:
        self._count = 0
        self._are_told = False

    def note(self) -> None:
        """One more."""
        self._count += 1

    @property
    def are_many(self) -> bool:
        """Whether the steps are to be taken for the model's own: its optimizer may have been forgotten."""
        return self._count >= _MOST_MISSED

    def take(self) -> int:
        """Return how many there were, once."""
        count = 0 if self._are_told else self._count
        self._are_told = True
        return count
