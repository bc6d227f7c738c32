"""Adds up what a thread that trains has waited for its DataLoaders, in memory that C reads as well.

Written by the wrapper of `loader_passes.py`, on the thread that loads. Other threads cost a look-up.
"""

from __future__ import annotations

import threading
from array import array
from typing import Final

WAITED_NS, BATCHES, IS_WAITING = range(3)
"""What a cell holds: both sums only ever grow."""


class LoaderWaits:
    """One cell of three numbers for each thread that was asked for."""

    def __init__(self) -> None:
        self.cells: Final[dict[int, array[int]]] = {}

    def of_this_thread(self) -> array[int]:
        """Return the calling thread's cell; from the first time on its waits are added up."""
        return self.cells.setdefault(threading.get_ident(), array("q", (0, 0, 0)))


loader_waits = LoaderWaits()
"""Of this process: every session shares it."""
