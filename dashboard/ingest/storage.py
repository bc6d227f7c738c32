"""How much room the spool and the store take, in one line for the page. Called on the spool's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from probe.delivery.spool_care import cap_bytes, last_removal, rooms
from probe.wire.findings import size_text

_PART: Final = 0.002
"""Of the time, that working out the line may take."""


class StorageLine:
    """The line, worked out so rarely that it takes a small part of the time, however many files there are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s, self.text = float("-inf"), ""

    def look(self, spool: Path, data: Path, *, store: str = "") -> str:
        """Return the newest line; see `storage_line`."""
        began_s = self._clock()
        if began_s >= self._next_s:
            self.text = storage_line(spool, data, store=store)
            ended_s = self._clock()
            self._next_s = ended_s + (ended_s - began_s) / _PART
        return self.text


def storage_line(spool: Path, data: Path, *, store: str = "") -> str:
    """Return the sizes, the spool's cap, and what the cap has deleted last.

    Args:
        spool: Its folder.
        data: Folder of the store's file.
        store: Where the store is, if it is not that file.
    """
    removal = last_removal(spool)
    size = sum(path.stat().st_size for path in data.glob("nanscope.duckdb*") if path.is_file())
    line = f"{spool_size(spool)}; store {store or size_text(size)}. dashboard clean deletes runs."
    return f"{line} {removal}." if removal else line


def spool_size(spool: Path) -> str:
    """Return what all runs of a spool take together, and its cap."""
    found = rooms(spool)
    size = size_text(sum(room.size_bytes for room in found))
    runs = "run" if len(found) == 1 else "runs"
    return f"Spool {size} in {len(found):,} {runs} of at most {size_text(cap_bytes())}"
