"""What leads to an object that a heap walk has found, as one would write it: ``model.head.cache['x']``.

Follows the identities that the walk has kept, from the root on; runs no code of the script's classes. What
has gone meanwhile has no name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn

from ..compat.torch_modules import REGISTRIES
from .heap_kinds import CLASS_NAMES, cells, held_by
from .heap_walk import HeapWalk
from .reachable import Access, Root, attributes


class _Place(NamedTuple):
    """Where the way to an object has come to."""

    value: Any
    path: Access | None
    """None where no name leads here."""
    owner: Any = None
    """The object whose attributes the value, a dict, holds."""


def access_of(walk: HeapWalk, roots: Mapping[int, Any], value: Any) -> Access | None:
    """Return how a value that the walk has found is reached; None where the way has changed since.

    Where no variable leads to it, the class of the object that holds it stands first, or its module's name;
    where nothing does, it is ``a list``.

    Args:
        walk: has come to the value.
        roots: of the walk, by their identities.
        value: what was found.
    """
    chain = walk.chain(id(value))
    if chain[0] not in roots:
        return None
    first = roots[chain[0]]
    place = _Place(first, walk.accesses.get(chain[0]))
    if (module := walk.modules.get(chain[0])) is not None:
        place = _Place(first, Access(Root(module, None, True, str(first.get("__file__")))), owner=first)
    for wanted in chain[1:]:
        inner = next((item for item in held_by(place.value) if id(item) == wanted), None)
        if inner is None:
            return None
        place = _next(place, inner)
    if place.value is not value:
        return None
    return place.path or Access(Root(f"a {type(value).__name__}", None, False))


def _next(place: _Place, inner: Any) -> _Place:
    """Go on to something that the place's value holds."""
    holder, path, owner = place
    if owner is not None:
        if _holds_attributes(owner, inner):
            return _Place(inner, path, owner)
        return _Place(inner, _attribute(path, owner, _key_of(holder, inner)))
    if _holds_attributes(holder, inner):
        return _Place(inner, path, holder)
    return _Place(inner, _named(path, holder, inner))


def _named(path: Access | None, holder: Any, inner: Any) -> Access | None:
    """The way to what a container, a function, a class or an object holds."""
    kind = type(holder)
    if kind is FunctionType:
        name = next((name for name, value in cells(holder).items() if value is inner), None)
        return None if name is None else Access(Root(name, holder.__code__, False))
    if kind is MethodType:
        return None if path is None else path.then("attribute", "__self__")
    if issubclass(kind, type):
        key = _key_of(CLASS_NAMES.__get__(holder), inner)
        return Access(Root(holder.__name__, None, False)).then("attribute", key, holder)
    if issubclass(kind, dict | list | tuple | deque | set | frozenset):
        return None if path is None else _item(path, holder, inner)
    name = next((name for name, value in attributes(holder, {}) if value is inner), None)
    return None if name is None else _attribute(path, holder, name)


def _item(path: Access, holder: Any, inner: Any) -> Access:
    kind = type(holder)
    if issubclass(kind, set | frozenset):
        return path.then("member", None)
    if issubclass(kind, dict):
        return path.then("item", _key_of(holder, inner))
    base: Any = next(base for base in (list, tuple, deque) if issubclass(kind, base))
    index = next((index for index, value in enumerate(base.__iter__(holder)) if value is inner), None)
    return path.then("item", index)


def _attribute(path: Access | None, owner: Any, name: Any) -> Access:
    """The way to an attribute; without a variable in front it begins with the class of its owner."""
    kind = type(owner)
    is_module = kind is dict
    if path is None or (path.root.code is None and not path.root.is_global):
        path = Access(Root(kind.__name__, None, False))
    return path.then("attribute", name, None if is_module else kind)


def _key_of(names: Mapping[Any, Any], inner: Any) -> Any:
    """The key of a value, where it is a text or a number: others would be kept alive."""
    items: Any = dict.items(names) if isinstance(names, dict) else names.items()
    key = next((key for key, value in items if value is inner), None)
    return key if type(key) in (str, int) else None


def _holds_attributes(owner: Any, value: Any) -> bool:
    """Whether a dict is that of an object's attributes, or of a module's children."""
    if type(value) not in (dict,) or issubclass(type(owner), type | dict | list | tuple | deque):
        return False
    if not any(True for _ in attributes(owner, {})):
        return False
    own = object.__getattribute__(owner, "__dict__")
    return value is own or (
        issubclass(type(owner), nn.Module) and any(value is own.get(name) for name in REGISTRIES)
    )
