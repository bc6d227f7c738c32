"""`WeakTable`: values by object, for as long as the object lives; nothing of ours runs when it dies.

Python prints what is raised where an object dies, and continues: what a signal handler raises there never
reaches the script. The callbacks of `weakref`'s own tables are Python code, in which a handler may strike;
here they are C code. For any thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class WeakTable(MutableMapping[K, V]):
    """A dictionary whose keys are objects by identity; an entry goes when its object does."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[K], V]] = {}

    def __setitem__(self, thing: K, value: V) -> None:
        key = id(thing)
        # `pop` is given the reference, too, as its default.
        self._held[key] = weakref.ref(thing, partial(self._held.pop, key)), value

    def __getitem__(self, thing: K) -> V:
        return self._held[id(thing)][1]

    def __delitem__(self, thing: K) -> None:
        del self._held[id(thing)]

    def __contains__(self, thing: object) -> bool:
        return id(thing) in self._held

    def __iter__(self) -> Iterator[K]:
        living = [reference() for reference, _ in self._held.copy().values()]
        return iter([thing for thing in living if thing is not None])

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
