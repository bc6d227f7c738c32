"""One replay on one thread: what it keeps, what it was there before, and when it refuses."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, Final

from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from ...errors import ReplayError
from ...threads.whereabouts import is_library
from .allowed_calls import is_known_library
from .inventory import Inventory
from .put_back import Ledger

_OF_C: Final = tuple(EXTENSION_SUFFIXES)
_IMMUTABLE: Final = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: a class that C defines."""


def always() -> bool:
    """Of a model's own forward: it is run again, whatever libraries it calls."""
    return True


class Replaying:
    """One replay on one thread: what it has kept, and how strict it is."""

    def __init__(
        self,
        ledger: Ledger,
        take: Callable[[types.FunctionType], bool],
        *,
        known: Inventory,
        is_lenient: Callable[[], bool],
    ) -> None:
        """Take what the replay needs.

        Args:
            ledger: keeps what is about to change.
            take: guards one more function.
            known: what there was before.
            is_lenient: tells, at any time, whether what may have effects is done all the same.
        """
        self.ledger, self.take = ledger, take
        self.is_lenient, self._known = is_lenient, known

    def is_fresh(self, value: Any) -> bool:
        """Whether a value was made since the replay began."""
        return self._known.is_new(value)

    def refuse(self, what: str, *, is_certain: bool = False) -> None:
        """Stop the replay; where it is lenient, only if it is certain that something happens a second time.

        Raises:
            ReplayError: it is stopped.
        """
        if is_certain or not self.is_lenient():
            raise ReplayError(what)


def keep_owner(now: Replaying, owner: Any) -> None:
    """Keep what a method of an installed package changes in the object that it belongs to."""
    if isinstance(owner, nn.Module):
        now.ledger.modules(owner)
    elif isinstance(owner, Optimizer):
        now.ledger.optimizer(owner)
    elif isinstance(owner, LRScheduler):
        now.ledger.scheduler(owner)
    elif isinstance(owner, type | types.ModuleType):
        return
    elif is_known_library(type(owner).__module__) or is_of_the_script(type(owner)):
        now.ledger.attributes(owner)


def is_of_the_script(value: Any) -> bool:
    """Whether the module that a class or function says it is of belongs to no library, and is no C code."""
    module = sys.modules.get(str(getattr(value, "__module__", "")))
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return getattr(module, "__name__", "") == "__main__"
    is_of_c = isinstance(value, type) and bool(value.__flags__ & _IMMUTABLE)
    return not (is_of_c or is_library(file) or file.endswith(_OF_C))
