"""When containers that are followed by name are to be asked for their lengths, by the pace of the steps.

Written by the leak watch on the training thread, read from any. C follows healthy steps and calls back at a
time, not at a step: a training of a second is over before the recorder's thread has looked for news twice.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .followed import FollowedContainers

_PACES: Final = 8
"""The fastest of so many newest paces counts: steps that were held up must not put off what comes next."""


class FollowTurns:
    """The containers that are followed, and how fast the steps come.

    Attributes:
        followed: what has grown and may come to hold enough to be a leak.
    """

    def __init__(self) -> None:
        self.followed: FollowedContainers | None = None
        self._step, self._at_ns = -1, 0
        self._paces: deque[float] = deque(maxlen=_PACES)
        """Nanoseconds per step, between two steps that were noted."""

    def note(self, step: int, now_ns: int) -> None:
        """A step has ended.

        Args:
            step: its number; those between it and the one before need not have been noted.
            now_ns: by the clock that `due_ns` is of.
        """
        steps = step - self._step
        if self._step >= 0 and steps > 0:
            self._paces.append((now_ns - self._at_ns) / steps)
        self._step, self._at_ns = step, now_ns

    @property
    def due_ns(self) -> float:
        """When the next container is to be asked; infinite where none is followed."""
        followed, paces = self.followed, tuple(self._paces)
        if followed is None or not paces:
            return math.inf
        return self._at_ns + min(paces) * max(followed.next_step - self._step, 1.0)
