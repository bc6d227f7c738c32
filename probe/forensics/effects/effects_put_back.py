"""Around a pass of a replay: what the script's own code changes in it is put back at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType

from torch import nn

from ...compat import all_objects
from ...errors import ReplayError
from .effect_guard import GUARD
from .guarded_functions import GuardedFunctions
from .inventory import Inventory, take_inventory
from .put_back import Ledger
from .replaying import Replaying


class _Shared(threading.local):
    """The inventory that all passes of a thread's replay have in common."""

    inventory: Inventory | None = None


_shared = _Shared()


@contextmanager
def objects_known() -> Iterator[None]:
    """Look only once through all objects, for the passes in the block: what a pass makes is put back."""
    before = _shared.inventory
    _shared.inventory = before or take_inventory()
    try:
        yield
    finally:
        _shared.inventory = before


@contextmanager
def effects_put_back(roots: Sequence[nn.Module], *, is_lenient: Callable[[], bool]) -> Iterator[None]:
    """Keep what the script's functions are about to change on this thread, and give it back at the end.

    What cannot be put back raises `ReplayError` before it happens.

    Args:
        roots: the models that are run.
        is_lenient: whether, at a moment, it is done all the same: in the model's own forward.
    """
    ledger = Ledger()
    functions = GuardedFunctions(ledger)
    with objects_known():
        known = _shared.inventory
        if known is None:
            raise ReplayError(all_objects.TOO_OFTEN)
        near = known.functions_near(roots)
        files = {function.__code__.co_filename for function in near}
        take = partial(_take, functions, known, files)
        before = GUARD.start(Replaying(ledger, take, known=known, is_lenient=is_lenient))
        try:
            for function in near:
                functions.take(function)
            yield
        finally:
            functions.give_back()
            GUARD.stop(before)
            ledger.put_back()


def _take(functions: GuardedFunctions, known: Inventory, files: set[str], function: FunctionType) -> bool:
    """Guard a function that is called by name, and the rest of its file: operators, properties, callbacks."""
    file = function.__code__.co_filename
    if not functions.take(function):
        return False
    if file not in files:
        files.add(file)
        for one in known.functions_of(file):
            # What is taken already no longer is what its source says.
            functions.take(one)
    return True
