"""Backwards that only pass through a model, on their way to another one: a judge's, of a generator's loss.

Used by the training loop, on the training thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..step.open_step import OpenStep

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
