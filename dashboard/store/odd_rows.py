"""Stored rows that cannot be read: passed over, counted once each, and told. Any thread.

A disk's damage is no such row: see `damage.py`. What an earlier release wrote, or somebody else, may be one.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

_MOST: Final = 10_000
"""Rows that are told apart."""


class OddRows:
    """What was passed over since the file was opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: set[tuple[str, str]] = set()

    def add(self, table: str, row: str) -> None:
        """A row of a table cannot be read; of the same row only the first time counts."""
        with self._lock:
            if len(self._rows) < _MOST:
                self._rows.add((table, row))

    def clear(self) -> None:
        """Begin with another file."""
        with self._lock:
            self._rows.clear()

    def text(self) -> str:
        """Return a sentence; "" where there is nothing to tell."""
        with self._lock:
            counts = Counter(table for table, _ in self._rows)
        if not counts:
            return ""
        total = counts.total()
        listed = ", ".join(f"{count:,} of {table}" for table, count in sorted(counts.items()))
        rows = "stored row cannot be read and is" if total == 1 else "stored rows cannot be read and are"
        return f"{total:,} {rows} passed over ({listed}); the rest is shown."
