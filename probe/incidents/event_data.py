"""What a script gives with an event of its own, as an event may carry it: bounded, and plain values.

Called by the session's `record_event` and `track_error`, on the script's thread.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from torch import Tensor

from ..compat.torch_modes import own_operations
from ..guard import outcome_of
from ..wire import MAX_DATA_BYTES, MAX_DATA_DEPTH, MAX_DATA_ITEMS, Severity
from ..wire.event_json import jsonable

_TEXT_LIMIT: Final = 4000
_KEY_LIMIT: Final = 200
_REPR_LIMIT: Final = 500
_SMALL: Final = 64
"""Elements up to which a tensor or array is given as a list."""
_RESERVE: Final = 256
"""Bytes kept for what says that something was left out, and for the brackets around it all."""
LEFT_OUT: Final = "..."
"""Stands in the place of what was left out."""
_SEVERITIES: Final[dict[str, Severity]] = {
    "debug": "info",
    "info": "info",
    "warning": "warning",
    "warn": "warning",
    "error": "critical",
    "critical": "critical",
}
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = _REPR_LIMIT


def severity_of(severity: object) -> Severity | None:
    """Return the severity for a word of ours or of Python's logging, or for an enum of such words.

    ``debug`` is ``info``, ``error`` is ``critical``; None of what is none of them.
    """
    name = getattr(severity, "value", severity)
    name = name if isinstance(name, str) else getattr(severity, "name", name)
    return _SEVERITIES.get(name.lower()) if isinstance(name, str) else None


def plain_data(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the data as an event carries them; None of none.

    Texts, None, bools, whole numbers and floats stay what they are, NaN and Inf included; numbers of numpy
    and tensors with one element become numbers, which waits for their device. Lists, tuples and sets become
    lists, mappings become dictionaries; small arrays and tensors become lists. Anything else is its `repr`.
    Texts are cut, and so is what goes deeper than `MAX_DATA_DEPTH` or, as JSON, beyond `MAX_DATA_BYTES`.
    """
    if not data:
        return None
    with own_operations():
        found: dict[str, Any] = _Bounded().mapping(data, MAX_DATA_DEPTH + 1)
    return found


class _Bounded:
    """Takes values as long as there is room for them."""

    def __init__(self) -> None:
        self._left = MAX_DATA_BYTES - _RESERVE

    def mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in list(values.items()):
            name = _cut(key if isinstance(key, str) else _text_of(key), _KEY_LIMIT)
            if len(found) >= MAX_DATA_ITEMS - 1 or not self._spend(name):
                found[LEFT_OUT] = f"{len(values) - len(found)} more"
                break
            found[name] = self.value(value, depth - 1)
        return found

    def sequence(self, values: list[Any], depth: int) -> list[Any]:
        found: list[Any] = []
        for value in values:
            if len(found) >= MAX_DATA_ITEMS - 1 or self._left <= 0:
                found.append(f"{LEFT_OUT} {len(values) - len(found)} more")
                break
            found.append(self.value(value, depth - 1))
        return found

    def value(self, value: Any, depth: int) -> Any:
        """One value, whose own room is taken off what is left."""
        value = _as_python(value)
        if depth > 0 and isinstance(value, Mapping):
            self._left -= 2
            return self.mapping(value, depth)
        if depth > 0 and isinstance(value, list | tuple | set | frozenset | deque):
            self._left -= 2
            return self.sequence(list(value), depth)
        plain = _plain(value)
        if self._spend(plain):
            return plain
        if isinstance(plain, str) and self._left > len(LEFT_OUT):
            cut = _cut(plain, self._left // 6)  # a character of it takes six bytes at most
            self._left = 0
            return cut
        self._left = 0
        return LEFT_OUT

    def _spend(self, plain: Any) -> bool:
        size = len(msgspec.json.encode(jsonable(plain))) + 2
        if size > self._left:
            return False
        self._left -= size
        return True


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, str):
        return _cut(str.__str__(value), _TEXT_LIMIT)
    return _text_of(value)


def _as_python(value: Any) -> Any:
    """Numbers, arrays and tensors of torch and numpy as Python's; anything else as it is."""
    if not isinstance(value, Tensor | np.generic | np.ndarray):
        return value
    found, _ = outcome_of(_read, value)
    return value if found is None else found[0]


def _read(value: Any) -> tuple[Any]:
    if isinstance(value, np.generic):
        return (value.item(),)
    count = value.numel() if isinstance(value, Tensor) else value.size
    if count == 1 and value.ndim == 0:
        return (value.item(),)
    if count > _SMALL:
        kind = str(value.dtype).removeprefix("torch.")
        return (f"{'tensor' if isinstance(value, Tensor) else 'array'} {kind} {list(value.shape)}",)
    return (value.tolist(),) if count != 1 else (value.reshape(()).item(),)


def _text_of(value: Any) -> str:
    """The `repr` of anything, cut; its class where that fails."""
    text, _ = outcome_of(_brief.repr, value)
    return _cut(text or f"<{type(value).__name__}>", _REPR_LIMIT)


def _cut(text: str, limit: int) -> str:
    # Halves of characters have no bytes.
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= limit else f"{whole[: max(limit - len(LEFT_OUT), 0)]}{LEFT_OUT}"
