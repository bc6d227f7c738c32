"""How many objects, and how many bytes, some items of a container take, estimated from a few of them.

Used by a look at the heap on the training thread. Runs no code of the objects' classes; keeps nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from torch import Tensor, nn

from ..guard import let_pass
from .reachable import attributes, kept_by_error

_SAMPLED: Final = 4
"""Items that are measured."""
_INSIDE: Final = (8, 4, 3, 3)
"""Objects in a container that are measured, by its depth; the others are taken to be like them."""
_TRACKED_BYTES: Final = 16
"""In front of an object that the garbage collector follows."""
_ATOMS: Final = frozenset({int, float, complex, str, bytes})
_SHARED_INTEGERS: Final = range(-5, 257)
"""There is one of each, however many containers hold it."""
_OTHERS: Final = (Tensor, np.ndarray, nn.Module, type, FunctionType, MethodType, ModuleType)
_BASES: Final[tuple[type, ...]] = (dict, list, tuple, deque, set, frozenset)


class PlainSize(NamedTuple):
    """Of an item, on average."""

    objects: float
    num_bytes: float


NO_SIZE: Final = PlainSize(0.0, 0.0)


def plain_size(items: Sequence[Any]) -> PlainSize:
    """Estimate what an item takes, without tensors, arrays and what several of them share."""
    seen: set[int] = set()
    sampled = items[:_SAMPLED]
    sizes = [_size(item, seen, 0) for item in sampled]
    count = max(len(sampled), 1)
    return PlainSize(
        sum(size.objects for size in sizes) / count, sum(size.num_bytes for size in sizes) / count
    )


def _size(value: Any, seen: set[int], depth: int) -> PlainSize:
    kind = type(value)
    if value is None or kind is bool or id(value) in seen or issubclass(kind, _OTHERS):
        return NO_SIZE
    seen.add(id(value))
    if kind in _ATOMS:
        is_shared = kind is int and value in _SHARED_INTEGERS
        return NO_SIZE if is_shared else PlainSize(1.0, float(sys.getsizeof(value)))
    base: Any = next((base for base in _BASES if issubclass(kind, base)), None)
    if base is None:
        return _of_object(value, seen, depth)
    own = float(base.__sizeof__(value) + _TRACKED_BYTES)
    return _with_inner(own, _some_of(value, base, depth), base.__len__(value), seen, depth)


def _of_object(value: Any, seen: set[int], depth: int) -> PlainSize:
    is_error = issubclass(type(value), BaseException)
    held = kept_by_error(value) if is_error else [inner for _, inner in attributes(value, {})]
    own = object.__sizeof__(value) + _TRACKED_BYTES
    most = _INSIDE[depth] if depth < len(_INSIDE) else 0
    return _with_inner(float(own + 8 * len(held)), held[:most], len(held), seen, depth)


def _with_inner(own: float, some: Sequence[Any], length: int, seen: set[int], depth: int) -> PlainSize:
    if not some:
        return PlainSize(1.0, own)
    sizes = [_size(inner, seen, depth + 1) for inner in some]
    share = length / len(some)
    return PlainSize(
        1.0 + share * sum(size.objects for size in sizes), own + share * sum(size.num_bytes for size in sizes)
    )


def _some_of(value: Any, base: Any, depth: int) -> list[Any]:
    """Some of what a container holds, none below the deepest level; none of one that is just changed."""
    if depth >= len(_INSIDE):
        return []
    try:
        items = dict.values(value) if base is dict else base.__iter__(value)
        return list(itertools.islice(items, _INSIDE[depth]))
    except RuntimeError as error:  # by another thread
        let_pass(error)
        return []
