"""The numbers that the steps of models share which are trained together, and what one thread trains.

Pure bookkeeping for `step_counter.py`; see docs/interfaces.md for the rule. On the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

Key = tuple[int, int | None]
"""A counter and the number of one of its optimizers; None stands for all of them."""
Site = Sequence[tuple[object, int]]
"""Code and instruction of each frame that leads to a call, innermost first."""
_KEPT_BACKWARDS: Final = 256


class StepAxis:
    """One step number at a time.

    Args:
        number: the first.

    Attributes:
        number: the newest step that has, or is about to get, a frame.
        frames: who has a frame with this number, and where its update was called.
        newest: the number of everybody's newest frame.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.frames: dict[Key, Site] = {}
        self.newest: dict[Key, int] = {}

    def advance(self) -> None:
        """The next step begins."""
        self.number += 1
        self.frames.clear()

    def note(self, key: Key, site: Site = ()) -> None:
        """`key` gets a frame with this number."""
        self.frames[key] = site
        self.newest[key] = self.number

    def has_frame(self, key: Key) -> bool:
        """Whether `key` has a frame with this number."""
        return key in self.frames or (key[0], None) in self.frames

    def is_behind(self, site: Site) -> bool:
        """Whether this number's iteration is past an update that is called here: the loop has begun again."""
        return bool(site) and any(precedes(site, other) for other in self.frames.values())

    def absorb(self, other: StepAxis) -> None:
        """Take in who was numbered by an axis that is not ahead of this one."""
        self.frames |= other.frames
        self.newest |= dict.fromkeys(other.newest, self.number)

    def split(self, member: int) -> StepAxis:
        """A counter shares its numbers no more; returns an axis of its own, at the same number."""
        own = StepAxis(self.number)
        own.frames = {key: self.frames.pop(key) for key in [*self.frames] if key[0] == member}
        own.newest = {key: self.newest.pop(key) for key in [*self.newest] if key[0] == member}
        return own


def precedes(one: Site, other: Site) -> bool:
    """Whether a call stands before another in the outermost code that leads to both and tells them apart."""
    for code, instruction in reversed(one):
        for other_code, other_instruction in reversed(other):
            if code is other_code and instruction != other_instruction:
                return instruction < other_instruction
    return False


class TrainedHere(threading.local):
    """What the sessions of one thread tell each other of its backwards and updates."""

    def __init__(self) -> None:
        self.updates = 0
        """Made by optimizers of watched models."""
        self.backward = 0
        """Number of the newest one."""
        self.newest: Callable[[], Any] = lambda: None
        """Gives the `StepCounter` of the model that was updated last."""
        self._of_loss = 0
        self._used: dict[int, int] = {}

    def begin_backward(self, tensors: object) -> int:
        """Return the number of a backward; every session that is told of the same one gets the same."""
        if self._of_loss != id(tensors):
            self._of_loss = id(tensors)
            self.backward += 1
        return self.backward

    def end_backward(self) -> None:
        """It has returned."""
        self._of_loss = 0

    def use(self, backwards: Sequence[int], step: int) -> None:
        """An update is made of the gradients of these, or one that was bad has got a frame."""
        self._used |= dict.fromkeys(backwards, step)
        while len(self._used) > _KEPT_BACKWARDS:
            del self._used[next(iter(self._used))]

    def unused(self) -> list[int]:
        """The newest backward, where no update was made of its gradients."""
        return [] if self.backward in self._used else [self.backward]

    def step_of(self, backwards: Sequence[int]) -> int | None:
        """The number of the frame that a watched model has got for one of these; None where none has."""
        return max((self._used[one] for one in backwards if one in self._used), default=None)


trained_here: Final = TrainedHere()
"""Of the thread that asks."""
