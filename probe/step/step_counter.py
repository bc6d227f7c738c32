"""Numbers the steps of a training loop. Pure bookkeeping; see docs/interfaces.md for the rule."""

from __future__ import annotations


class StepCounter:
    """The number advances when an optimizer that already has a frame with it steps again.

    So one iteration of a GAN, with its two optimizers, is one step; a skipped update counts as a step too.

    Attributes:
        number: the newest step that has, or is about to get, a frame; 0-based.
    """

    def __init__(self) -> None:
        self.number = 0
        self._owners: set[int] = set()
        self._is_closed = False

    def at_step(self, optimizer: int) -> int:
        """An optimizer (by a number of its own) is about to update; returns the number of its frame."""
        if self._is_closed or optimizer in self._owners:
            self._advance()
        self._owners.add(optimizer)
        return self.number

    def at_early_verdict(self) -> int:
        """A frame is made before any optimizer steps; the step that follows keeps its number."""
        if self._is_closed or self._owners:
            self._advance()
        return self.number

    def resume_after(self, step: int) -> None:
        """Steps up to this one were counted elsewhere, all of them with their updates."""
        self.number = step

    def close(self) -> None:
        """No optimizer will step with this number any more: the update was skipped."""
        self._is_closed = True

    def _advance(self) -> None:
        self.number += 1
        self._owners.clear()
        self._is_closed = False
