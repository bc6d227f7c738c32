"""Which threads are inside a replay: nothing that they run is part of the training.

Asked at every callback of every session; apart from `forensics/replay.py`, which a healthy run never loads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_replaying: set[int] = set()
"""Threads that are inside a replay; nearly always none, which is quick to see."""


def is_replaying() -> bool:
    """Whether this thread is inside a replay: hooks of the session must then do nothing."""
    return bool(_replaying) and threading.get_ident() in _replaying


@contextmanager
def unnoticed() -> Iterator[None]:
    """Have the sessions take no notice of what this thread does in the block: forwards to updates."""
    thread = threading.get_ident()
    if thread in _replaying:
        yield
        return
    try:
        _replaying.add(thread)
        yield
    finally:
        _replaying.discard(thread)
