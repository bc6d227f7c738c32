"""Copies of the content of plain containers, at any depth, and their way back.

Used by what puts the state of a replay back. Compares by identity: never a tensor by value.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

CONTAINERS: Final = (list, dict, set, deque, bytearray)
"""What can be filled; classes that derive from these are put back in what they inherit."""
PLAIN: Final = frozenset({list, dict, OrderedDict, defaultdict, Counter, set, deque, bytearray})
_MOST_ITEMS: Final = 20_000


def content_of(container: Any) -> Any:
    """Return what one of `CONTAINERS` holds, a copy; no method of a derived class is called."""
    if isinstance(container, dict):
        return list(dict.items(container))
    if isinstance(container, bytearray):
        return bytes(container)
    kind = next(kind for kind in (list, set, deque) if isinstance(container, kind))
    return list(kind.__iter__(container))


def put_back(container: Any, content: Any) -> None:
    """Give a container the content that `content_of` returned, unless it has it still."""
    if _is_same(content_of(container), content):
        return
    if isinstance(container, dict):
        ordered = isinstance(container, OrderedDict)
        (OrderedDict if ordered else dict).clear(container)
        for key, value in content:
            (OrderedDict if ordered else dict).__setitem__(container, key, value)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), content)
    elif isinstance(container, bytearray):
        bytearray.__setitem__(container, slice(None), content)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, content)
    else:
        deque.clear(container)
        deque.extend(container, content)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bytes):
        return bool(one == other)
    if len(one) != len(other):
        return False
    if one and type(one[0]) is tuple and type(other[0]) is tuple and len(one[0]) == len(other[0]) == 2:
        # Items of a dictionary, made anew by each look; of a list of pairs it only takes a little longer.
        pairs = zip(one, other, strict=True)
        return all(a is b or (len(a) == len(b) == 2 and a[0] is b[0] and a[1] is b[1]) for a, b in pairs)
    return all(a is b for a, b in zip(one, other, strict=True))


def nested(values: Iterable[Any]) -> Iterator[Any]:
    """The plain containers among some values, and those inside of them, each once; of bounded number.

    Those of the values themselves come first, and always; of what they hold 20,000 items are looked at.
    """
    waiting = deque(value for value in values if type(value) in PLAIN)
    seen, left = set[int](), _MOST_ITEMS
    while waiting:
        container = waiting.popleft()
        if id(container) in seen:
            continue
        seen.add(id(container))
        yield container
        if isinstance(container, bytearray) or len(container) > left:
            continue
        left -= len(container)
        inside = container.values() if isinstance(container, dict) else container
        waiting.extend(one for one in inside if type(one) in PLAIN)
        # A tuple is not written, but what it holds may be.
        of_tuples = (part for one in inside if type(one) is tuple for part in one[:left])
        waiting.extend(part for part in of_tuples if type(part) in PLAIN)
