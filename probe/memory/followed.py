"""Containers that have grown, but hold too little to be a leak, followed by name instead of looked for anew.

A look at the heap takes 5 ms and more, in slices; to ask a container for its length takes some microseconds.
Used by the leak watch on the training thread. Keeps names, code and numbers, never an object.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from msgspec.structs import replace

from .leaks import Leak, Suspect
from .reachable import Access, user_frames, value_at

_MOST: Final = 8
_LEAST_SHARE: Final = 1 / 16
"""Of the steps since they are followed, that lie between two questions: a cache that stays just below what
makes it a leak is asked 16 times while its steps become 2.7 times as many."""
_MOST_TOGETHER: Final = 8192
"""Containers in another one that are asked for their lengths."""
_BASES: Final[tuple[type, ...]] = (list, dict, set, deque)


class FollowedContainers:
    """Some suspects, each with the length that it had last.

    Args:
        suspects: named ones, what holds most first.
        step: number of the step that has just ended.
        bytes_left: how many more bytes make a suspect a leak.
        seen_at: the step of their lengths; the search for their lines may have taken a thousand more.
    """

    def __init__(
        self, suspects: Sequence[Suspect], step: int, bytes_left: Callable[[Leak], float], *, seen_at: int
    ) -> None:
        self._suspects = [suspect for suspect in suspects if suspect.is_named][:_MOST]
        self._since, self._seen_at = step, seen_at
        self._bytes_left = bytes_left
        self.next_step = self._next(step)

    def look(self, step: int, frame: FrameType | None, is_certain: Callable[[Leak], bool]) -> list[Suspect]:
        """Return those that are leaks by now; what has got shorter is followed no longer.

        Args:
            step: number of the step that has just ended.
            frame: where the training thread is.
            is_certain: whether it is a leak.
        """
        frames = user_frames(frame)
        kept = []
        for suspect in self._suspects:
            length = _length_of(suspect, frames)
            if length is None or length < suspect.length:
                continue
            kept.append(
                replace(
                    suspect,
                    length=length,
                    grown=suspect.grown + length - suspect.length,
                    steps=suspect.steps + step - self._seen_at,
                )
            )
        self._suspects, self._seen_at = kept, step
        self.next_step = self._next(step)
        return [suspect for suspect in kept if is_certain(suspect.leak())]

    def _next(self, step: int) -> float:
        """Half of the steps that the first of them takes to hold enough, from now on, but not too few."""
        least = max(_LEAST_SHARE * (step - self._since), 1.0)
        waits = [
            self._bytes_left(leak) / leak.bytes_per_step
            for leak in (suspect.leak() for suspect in self._suspects)
            if leak.bytes_per_step > 0
        ]
        passed = step - self._seen_at
        return step + max((min(waits) - passed) / 2, least) if waits else float("inf")


def _length_of(suspect: Suspect, frames: Sequence[Any]) -> int | None:
    """How many items it has now; None where the name leads to another one."""
    access: Access | None = suspect.access.parent if suspect.is_group else suspect.access
    value: Any = None if access is None else value_at(access, frames)
    if not suspect.is_group:
        return _length(value) if id(value) == suspect.identity else None
    kind = type(value)
    if issubclass(kind, dict):
        inner = list(itertools.islice(dict.values(value), _MOST_TOGETHER))
    elif issubclass(kind, list):
        inner = list.__getitem__(value, slice(_MOST_TOGETHER))
    else:
        return None
    return sum(_length(item) or 0 for item in inner)


def _length(value: Any) -> int | None:
    base: Any = next((base for base in _BASES if issubclass(type(value), base)), None)
    return None if base is None else int(base.__len__(value))
