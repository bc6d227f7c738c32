"""Binary messages of the live feed: a JSON header and raw arrays, each sent as what changed since last time.

Layout of one message, parsed by `assets/ns_10_codec.js` and nowhere else::

    u32 little-endian     length of the header in bytes
    header                UTF-8 JSON; `arrays` lists [key, dtype, drop, keep, count] in payload order
    payload               for each listed array `count` elements, little-endian, back to back

An array's new value is the old one of that key (empty at first) without its first `drop` elements, cut to
`keep` elements, followed by the `count` elements of the payload. dtype is numpy's: f4, f8, u1 or u2.
One encoder belongs to one connection. Pure computation, on whichever thread builds the message.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_DTYPES: Final = ("f4", "f8", "u1", "u2")


class DeltaEncoder:
    """Remembers what one client holds and encodes only the difference."""

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}
        self._entries: list[tuple[str, str, int, int, int]] = []
        self._payload: list[bytes] = []

    def add(self, key: str, values: Array, *, drop: int = 0) -> None:
        """Put one array into the message that is being built.

        Args:
            key: Name under which the client keeps it.
            values: One-dimensional.
            drop: How many of the held array's first elements have left the view (see `shift`).

        Raises:
            ValueError: the dtype is none of f4, f8, u1, u2, or the array has more than one dimension.
        """
        dtype = values.dtype.newbyteorder("<").str.lstrip("<|")
        if dtype not in _DTYPES or values.ndim != 1:
            raise ValueError(f"array {key!r} is {values.dtype} of {values.ndim} dimensions")
        new = np.ascontiguousarray(values)
        old = self._held.get(key)
        keep = 0
        if old is not None and old.dtype == new.dtype:
            drop = min(drop, len(old))
            keep = common_prefix(old[drop:], new)
        self._held[key] = new
        tail = new[keep:]
        if old is not None and drop == 0 and keep == len(old) and not len(tail):
            return
        self._entries.append((key, dtype, drop, keep, len(tail)))
        self._payload.append(tail.tobytes())

    def held(self, key: str) -> Array | None:
        """Return what the client holds under a key."""
        return self._held.get(key)

    def finish(self, header: dict[str, Any]) -> bytes:
        """Return the message and begin the next one. Non-finite numbers in the header become null."""
        encoded = msgspec.json.encode({**header, "arrays": self._entries})
        message = struct.pack("<I", len(encoded)) + encoded + b"".join(self._payload)
        self._entries, self._payload = [], []
        return message


def shift(old: Array | None, new: Array) -> int:
    """Return how many of the old index's first elements have left: where its overlap with `new` begins."""
    if old is None or not len(old) or not len(new):
        return 0 if old is None else len(old)
    at = np.flatnonzero(old == new[0])
    return int(at[0]) if len(at) else len(old)


def common_prefix(old: Array, new: Array) -> int:
    """Return how many first elements are the same, bit for bit (NaN equals the same NaN)."""
    length = min(len(old), len(new))
    if not length:
        return 0
    bits = np.dtype(f"u{new.dtype.itemsize}")
    different = old[:length].view(bits) != new[:length].view(bits)
    first = int(np.argmax(different))
    return first if different[first] else length
