"""What is made to last, modules above all, does not make Python's collector go through the whole process.

For `probe/__init__.py` and `session.py`, on the thread that watches a model. Imports nothing of ours.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting() -> Iterator[None]:
    """Make objects that stay: they are old at once, and no reason for a full collection.

    Such a one takes 0.16 s where torch is imported; Python makes it when a quarter more objects than before
    have lived long, so that what `watch` loads brought it into one of the next steps. Old ones that were
    never counted are what `gc.unfreeze` leaves. Garbage from before is collected first, for it would
    become old too. Nothing is done for who collects, or froze objects, by himself.
    """
    global _frozen_by_others
    if not gc.isenabled():
        yield
        return
    gc.collect(1)
    try:
        gc.disable()
        yield
    finally:
        _frozen_by_others = _frozen_by_others or gc.get_freeze_count() > 0
        if not _frozen_by_others:
            gc.freeze()
            gc.unfreeze()
        gc.enable()


_frozen_by_others = False
"""Asked until it is so: where torch was frozen as well, each count of it takes 50 ms."""
