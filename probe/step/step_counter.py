"""Numbers the steps of a training loop. Pure bookkeeping; see docs/interfaces.md for the rule."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence

from .step_axis import Site, StepAxis, trained_here

_counters = itertools.count()
_live: dict[int, weakref.ref[StepCounter]] = {}
"""Counters of sessions that have not ended, by a number of their own."""


class StepCounter:
    """The number advances when an optimizer that already has a frame with it steps again.

    So one iteration of a GAN, with its two optimizers, is one step; a skipped update counts as a step too.
    Models that are trained together share their numbers: those of which one is called with what another has
    made, and those whose updates alternate.

    Args:
        first: number of the first step.

    Attributes:
        updates: how many its optimizers have made on this thread, as `trained_here` has them.
    """

    def __init__(self, first: int = 0) -> None:
        self._own = next(_counters)
        self._axis = StepAxis(first)
        self._is_shared = False
        self._open_on = 0
        """The thread on which the model was called since its last frame; 0 for none."""
        self.updates = 0
        _live[self._own] = weakref.ref(self)

    @property
    def number(self) -> int:
        """The newest step that has, or is about to get, a frame."""
        return self._axis.number

    @property
    def wants_sites(self) -> bool:
        """Whether it matters where an update is called: there is more than one optimizer."""
        return len(self._axis.newest) > 1

    @property
    def upcoming(self) -> int | None:
        """Number of the step that is under way or about to begin; None where no other model shares it."""
        if not self._is_shared:
            return None
        return self.number + any(key[0] == self._own for key in self._axis.frames)

    # -- with others

    def open(self, *, is_fed: bool) -> None:
        """The model is called, perhaps with what another module has made: then one iteration trains both."""
        self._open_on = threading.get_ident()
        for other in _counters_alive() if is_fed else ():
            if other._open_on == self._open_on and other._axis is not self._axis:
                self._join(other)

    def end(self) -> None:
        """It has got its frame, or needs none."""
        self._open_on = 0

    def _join(self, other: StepCounter) -> None:
        ahead, behind = self._axis, other._axis
        if behind.number > ahead.number:
            ahead, behind = behind, ahead
        ahead.absorb(behind)
        for counter in _counters_alive():
            if counter._axis is ahead or counter._axis is behind:
                counter._axis, counter._is_shared = ahead, True

    def leave(self) -> None:
        """The session has ended: nobody shares a number with it any more."""
        _live.pop(self._own, None)
        self._axis = self._axis.split(self._own)
        self._is_shared = False
        if trained_here.newest() is self:
            trained_here.newest = _nobody

    # -- numbers

    def at_step(self, optimizer: int, *, backwards: Sequence[int] = (), site: Site = ()) -> int:
        """An optimizer (by a number of its own) is about to update; returns the number of its frame.

        Args:
            optimizer: the same for optimizers of the same parameters.
            backwards: numbers of those whose gradients it uses.
            site: where its step is called; wanted where there are several.
        """
        self._note_update()
        if not backwards:
            # It has no gradient: the loss that was meant for it was cut off on the way.
            backwards = trained_here.unused()
        axis, key = self._axis, (self._own, optimizer)
        if axis.has_frame(key) or axis.is_behind(site):
            axis.advance()
        axis.note(key, site)
        trained_here.use(backwards, axis.number)
        return axis.number

    def _note_update(self) -> None:
        before = trained_here.newest()
        if before is not None and before is not self and self.updates and before._axis is not self._axis:
            self._join(before)
        trained_here.newest = weakref.ref(self)
        trained_here.updates += 1
        self.updates += 1

    def at_early_verdict(self, *, since: int | None = None, site: Site = ()) -> int:
        """A frame is made before any optimizer steps; the step that follows keeps its number.

        Args:
            since: the number at the backward that it is about, where that is over; None: it is under way.
            site: where that was called.
        """
        axis = self._axis
        own = {key: newest for key, newest in axis.newest.items() if key[0] == self._own}
        if since is not None and since < axis.number and max(own.values(), default=-1) < since:
            return since
        # The key of all stands for no optimizer: it is noted where a step has none.
        optimizers = [key for key in own if key[1] is not None]
        expected = [key for key in optimizers if own[key] >= axis.number - 1]
        is_done = any(key in axis.frames for key in own) and all(map(axis.has_frame, expected))
        if is_done or axis.is_behind(site):
            axis.advance()
        return axis.number

    def resume_after(self, step: int) -> None:
        """Steps up to this one were counted elsewhere, all of them with their updates."""
        self._axis.number = step

    def close(self, step: int) -> None:
        """No optimizer of this model will step with this number any more: the update was skipped."""
        if step == self._axis.number:
            self._axis.note((self._own, None))
        else:
            self._axis.newest[self._own, None] = step


def _counters_alive() -> list[StepCounter]:
    return [counter for reference in list(_live.values()) if (counter := reference()) is not None]


def _nobody() -> None:
    return None
