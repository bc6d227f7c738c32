"""Around a pass of a replay: what the script's own code changes in it is put back at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .effect_guard import GUARD
from .guarded_functions import GuardedFunctions
from .put_back import Ledger
from .replaying import Replaying


@contextmanager
def effects_put_back(*, is_lenient: Callable[[], bool]) -> Iterator[None]:
    """Keep what the script's functions are about to change on this thread, and give it back at the end.

    What cannot be put back raises `ReplayError` before it happens.

    Args:
        is_lenient: whether, at a moment, it is done all the same: in the model's own forward.
    """
    ledger = Ledger()
    functions = GuardedFunctions(ledger)
    before = GUARD.start(Replaying(ledger, functions.take, is_lenient=is_lenient))
    try:
        functions.take_all()
        yield
    finally:
        functions.give_back()
        GUARD.stop(before)
        ledger.put_back()
