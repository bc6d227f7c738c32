"""How far the epoch under way is: out of the passes over DataLoaders that are open, and the steps since.

Written on the training thread, read on the recorder's: what is read is one tuple, replaced whole. Nothing is
taken out of a loader; its own count of batches is looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final, NamedTuple

from ..compat.torch_training import batches_given, batches_of

_MOST: Final = 8
"""Passes that are kept: scripts leave iterators open, and make new ones."""
_LEAST_STEPS: Final = 2
"""Before, a batch in work is not told from an accumulation over two."""


class EpochPlace(NamedTuple):
    """The epoch under way."""

    began: int
    """Steps that were made before it."""
    steps: int
    """That it has, or is taken to have."""
    is_estimate: bool
    """The number of batches is no multiple of those of a step, or is that of the epoch before."""


class _Pass(NamedTuple):
    """A pass over a DataLoader that has begun and not run out."""

    iterator: Callable[[], object | None]
    began: int
    """Steps that were made before it."""
    batches: int


class OpenPasses:
    """Passes of the training loop; used by `epochs.py`."""

    def __init__(self) -> None:
        self._open: tuple[_Pass, ...] = ()

    def begin(self, iterator: object, *, made: int) -> None:
        """A pass begins, after so many steps; of one whose length only the script knows nothing is kept."""
        self.end(iterator)
        batches = batches_of(iterator)
        if batches:
            self._open = (*self._open, _Pass(weakref.ref(iterator), made, batches))[-_MOST:]

    def end(self, iterator: object) -> None:
        """It has run out."""
        there = [(one, one.iterator()) for one in self._open]
        self._open = tuple(one for one, found in there if found is not None and found is not iterator)

    def clear(self) -> None:
        """Forget all: somebody tells of epochs."""
        self._open = ()

    def place(self, made: int) -> EpochPlace | None:
        """Where the training is, after so many steps; None where no pass shows it. Any thread.

        The pass that began last counts, and of those that began together the shortest: it ends the epoch.
        """
        found = [place for place in (_place(one, made) for one in self._open) if place is not None]
        return max(found, key=lambda place: (place.began, -place.steps), default=None)


def _place(one: _Pass, made: int) -> EpochPlace | None:
    """None too where fewer batches than steps came of it, as of a loader of another kind of data."""
    iterator, steps = one.iterator(), made - one.began
    given = None if iterator is None else batches_given(iterator)
    if given is None or steps < _LEAST_STEPS:
        return None
    each = given // steps
    if not 1 <= each <= steps:
        return None
    return EpochPlace(one.began, max(one.batches // each, steps), one.batches % each > 0)
