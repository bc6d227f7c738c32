"""How a walk of the heap treats objects: which it enters, what they hold, how long they are.

Runs no code of the objects' classes. Called by the heap walk on the training thread; keeps nothing.
"""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
    WrapperDescriptorType,
)
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..guard import let_pass

_MAX_NAMES: Final = 8192
"""Items of a dict with texts as keys, such as a model's modules; a longer one is entered at its ends."""
MAX_ITEMS: Final = 512
"""Of other containers, in the same way."""
_MANY: Final = 64
"""Items of a container that are data rather than structure: containers in it are entered at their ends."""
FEW: Final = 16
"""Items at which they are entered."""
_AT_ONCE: Final = 128
"""Items that a walk comes to in one piece, whatever their order: then the garbage collector's is read."""
OWN: Final = __name__.partition(".")[0]
LIBRARIES: Final = frozenset({*sys.stdlib_module_names, "torch", "numpy", "dashboard", OWN} - {"__main__"})
"""Their classes are not entered, and their modules only by a wide walk; never our own."""
_UNENTERED: Final = LIBRARIES | {"", "builtins"}
_NEVER: Final = (
    *(str, bytes, bytearray, int, float, complex, type(None), range, slice, np.ndarray, np.generic),
    *(torch.dtype, torch.device, torch.Size, torch.layout),
    *(ModuleType, CodeType, FrameType, TracebackType, weakref.ref),
    *(GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType),
)
_CONTAINERS: Final[tuple[type, ...]] = (list, dict, set, deque)
_SEQUENCES: Final[tuple[type, ...]] = (*_CONTAINERS, tuple, frozenset)
CLASS_NAMES: Final = type.__dict__["__dict__"]
"""Reads the names of a class, whatever its metaclass says."""
_WEAK_OFFSET: Final = type.__dict__["__weakrefoffset__"]

Referents: TypeAlias = Callable[[Any], Sequence[Any]]


class Kind:
    """How objects of one type are treated.

    Attributes:
        length: takes the length of a container without its class's own code; None for what is none.
        is_container: a list, dict, set or deque.
        is_kept_weakly: whether there are weak references to it.
        is_of_library: whether the type is there for good.
        referents: what one of them holds; None for what is not entered.
    """

    __slots__ = ("is_container", "is_kept_weakly", "is_of_library", "is_tensor", "length", "referents")

    def __init__(self, kind: type) -> None:
        base = next((base for base in _SEQUENCES if issubclass(kind, base)), None)
        self.length: Callable[[Any], int] | None = None if base is None else base.__len__  # type: ignore[attr-defined]
        self.is_container = base in _CONTAINERS
        self.is_tensor = issubclass(kind, Tensor)
        self.is_of_library = _top_of(kind) in _UNENTERED
        self.is_kept_weakly = _WEAK_OFFSET.__get__(kind) != 0
        self.referents = _referents_of(kind)

    def held_by(self, value: Any, *, most: int | None = None, first: int | None = None) -> Sequence[Any]:
        """Return what an object of this type holds, of a container with more than `most` items the ends.

        Args:
            value: the object.
            most: None: as many as its type allows.
            first: of a container, so many items count; None: all.
        """
        if self.length is not None:
            now = self.length(value)
            length = now if first is None else min(first, now)
            if length > (most or _most_of(value, length)):
                return _ends_of(value, (most or MAX_ITEMS) // 2, length)
            if length < now or length > _AT_ONCE:
                return _first_of(value, length)
        return () if self.referents is None else self.referents(value)

    def is_data(self, value: Any) -> bool:
        """Whether it is a long container, and no dict of names."""
        return self.length is not None and self.length(value) > _MANY and not _has_names(value)


def _most_of(value: Any, length: int) -> int:
    return _MAX_NAMES if length > MAX_ITEMS and _has_names(value) else MAX_ITEMS


def _has_names(value: Any) -> bool:
    return issubclass(type(value), dict) and type(next(iter(dict.keys(value)), None)) is str


def held_by(value: Any) -> Sequence[Any]:
    """Return what an object holds, all that a walk may go on to."""
    kind = Kind(type(value))
    is_long = kind.length is not None and kind.length(value) > _MAX_NAMES
    return kind.held_by(value, most=None if is_long else _MAX_NAMES)


def _referents_of(kind: type) -> Referents | None:
    """How to enter objects of a type; None: not at all."""
    if issubclass(kind, _NEVER):
        return None
    if issubclass(kind, type):
        return _of_class
    if kind is FunctionType:
        return _of_function
    # The session's own histories are not the script's.
    return None if _top_of(kind) == OWN else gc.get_referents


def _top_of(kind: type) -> str:
    module = CLASS_NAMES.__get__(kind).get("__module__")
    return module.partition(".")[0] if type(module) is str else ""


def _of_class(kind: type) -> Sequence[Any]:
    return () if _top_of(kind) in _UNENTERED else list(CLASS_NAMES.__get__(kind).values())


def _of_function(function: FunctionType) -> Sequence[Any]:
    """What it has kept of the function round it, and its own attributes; not its module."""
    held: list[Any] = [function.__dict__, function.__defaults__, function.__kwdefaults__]
    return [*cells(function).values(), *(value for value in held if value)]


def cells(function: FunctionType) -> dict[str, Any]:
    """Return the variables of the function round it that a closure has kept."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _first_of(value: Any, length: int) -> list[Any]:
    """The first items of a container, then what it holds beside items; none of one that is just changed."""
    try:
        items = list(_items_of(value, length))
        if type(value) in _SEQUENCES:
            return items
        known = set(map(id, _items_of(value, None)))
        return items + [other for other in gc.get_referents(value) if id(other) not in known]
    except RuntimeError as error:  # by another thread
        let_pass(error)
        return []


def _items_of(value: Any, most: int | None) -> Iterator[Any]:
    """Iterate over a container's first items; over a dict's keys, too, where they are no texts."""
    base: Any = next(base for base in _SEQUENCES if issubclass(type(value), base))
    if base is not dict:
        return itertools.islice(base.__iter__(value), most)
    if _has_names(value):
        return itertools.islice(dict.values(value), most)
    return itertools.chain.from_iterable(itertools.islice(dict.items(value), most))


def _ends_of(value: Any, count: int, length: int) -> list[Any]:
    """So many of the first and last of the first `length` items; none of a container that is just changed."""
    try:
        return _read_ends(value, count, length)
    except (RuntimeError, IndexError) as error:  # by another thread
        let_pass(error)
        return []


def _read_ends(value: Any, most: int, length: int) -> list[Any]:
    last = max(length - most, most)
    if issubclass(type(value), dict):
        items: Any = dict.values(value)
        newer = dict.__len__(value) - length
        from_end = itertools.islice(reversed(items), newer, newer + length - last)
        return [*itertools.islice(items, most), *from_end]
    if issubclass(type(value), list | tuple | deque):
        base: Any = next(base for base in (list, tuple, deque) if issubclass(type(value), base))
        return [base.__getitem__(value, index) for index in (*range(most), *range(last, length))]
    members = set.__iter__(value) if issubclass(type(value), set) else frozenset.__iter__(value)
    return list(itertools.islice(members, length - last + most))
