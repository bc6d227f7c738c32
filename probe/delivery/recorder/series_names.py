"""The names under which a script logs values: a long one is cut, and so many are kept of a run.

Beyond these limits the store has no room for a frame. Used on the training thread; the recorder's thread
reports the counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, TypeVar

from ...wire.records import MAX_SCALAR_NAME

MAX_LOGGED_NAMES: Final = 3_900
"""Different names of one run. With the probe's own scalars they are fewer than a frame may have."""
_CUT_AT: Final = MAX_SCALAR_NAME - 24
"""Characters that are kept of a longer name: with the checksum they are within the limit."""

Value = TypeVar("Value")


class SeriesNames:
    """The names of one run's logged series.

    Attributes:
        cut: different names that were cut.
        left_out: values that were left out, because their names were too many.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.cut, self.left_out = 0, 0

    def fit(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values that a frame can hold, under names that it can hold."""
        if values.keys() <= self._known:
            return dict(values)
        fitting: dict[str, Value] = {}
        for name, value in values.items():
            kept = name if len(name) <= MAX_SCALAR_NAME else _shortened(name)
            if kept not in self._known:
                if len(self._known) >= MAX_LOGGED_NAMES and name != "loss":
                    self.left_out += 1
                    continue
                self._known.add(kept)
                self.cut += kept != name
            fitting[kept] = value
        return fitting


def _shortened(name: str) -> str:
    """Cut a name; names that differ only in what is cut away stay different."""
    return f"{name[:_CUT_AT]}...~{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
