"""Is asked before each write of the script's own code while a step is made again, and keeps what is there.

Part of the guard: see `effect_guard.py`.
"""

from __future__ import annotations

import inspect
import sys
import threading
import types
from typing import Any, Final

from torch import Tensor, nn

from ...threads.whereabouts import is_library
from ..plain_containers import CONTAINERS
from .allowed_calls import is_allowed, is_outside
from .replaying import Replaying, keep_owner

FIXED: Final = (str, bytes, int, float, complex, bool, tuple, frozenset, range, slice, types.NoneType)
"""Kinds of values that cannot be changed."""
_OF_DATACLASSES: Final = frozenset(
    "__init__ __eq__ __repr__ __hash__ __new__ __lt__ __le__ __post_init__".split()
)


class GuardedWrites:
    """Knows the replays of all threads, and the code that asks."""

    def __init__(self) -> None:
        self._replaying: dict[int, Replaying] = {}
        self._known: dict[int, types.CodeType] = {}

    def known(self, code: types.CodeType) -> types.CodeType:
        """Note that a code object asks the guard."""
        self._known[id(code)] = code
        return code

    def start(self, now: Replaying) -> Replaying | None:
        """Answer for a replay on this thread; returns what went on before."""
        before = self._replaying.get(threading.get_ident())
        self._replaying[threading.get_ident()] = now
        return before

    def stop(self, before: Replaying | None) -> None:
        """End what `start` began."""
        self._replaying.pop(threading.get_ident(), None)
        if before is not None:
            self._replaying[threading.get_ident()] = before

    def now(self) -> Replaying | None:
        """The replay that this thread is in."""
        return self._replaying.get(threading.get_ident()) if self._replaying else None

    def check_function(self, now: Replaying, function: types.FunctionType, of: Any = None) -> None:
        """Watch what a function does; refuse a library's that is not known, and one without a source."""
        code = function.__code__
        if id(code) in self._known or (not is_library(code.co_filename) and now.take(function)):
            return
        module, name = str(function.__globals__.get("__name__")), function.__name__
        if code.co_filename.startswith("<string>") and name in _OF_DATACLASSES:
            return
        # What wraps a function of the script's has its name.
        name = name if function.__module__ == module else ""
        if is_library(code.co_filename) and is_allowed(module, name):
            return
        owner = "" if of is None else f"{of.__name__ if isinstance(of, type) else type(of).__name__}."
        why = "which may have side effects that cannot be undone"
        if not is_library(code.co_filename):
            why = "whose source cannot be read, so its side effects cannot be undone"
        now.refuse(
            f"they call {owner}{function.__name__}, {why}", is_certain=is_outside(module, function.__name__)
        )

    # -- writes

    def store(self, owner: Any, name: str) -> Any:
        """`owner.name = ...`, or `del owner.name`."""
        now = self.now()
        if now is None:
            return owner
        if isinstance(owner, type | types.ModuleType | types.FunctionType):
            now.ledger.of_namespace(owner, name)
            return owner
        found = inspect.getattr_static(type(owner), name, None)
        if isinstance(owner, Tensor) and name in ("grad", "requires_grad"):
            now.ledger.of_tensor(owner, name)
        elif isinstance(found, types.MemberDescriptorType):
            now.ledger.slot(owner, name, found)
        elif isinstance(found, types.GetSetDescriptorType):
            if not now.is_fresh(owner):
                now.refuse(f"they write {type(owner).__name__}.{name}, which cannot be undone")
        elif type(getattr(owner, "__dict__", None)) is dict:
            now.ledger.attributes(owner)
        else:
            now.refuse(f"they write {type(owner).__name__}.{name}, which cannot be undone")
        return owner

    def items(self, owner: Any) -> Any:
        """`owner[...] = ...`, or `del owner[...]`."""
        now = self.now()
        if now is None or isinstance(owner, Tensor):
            return owner
        if isinstance(owner, CONTAINERS):
            now.ledger.container(owner)
        elif type(owner).__module__ == "numpy" and hasattr(owner, "ctypes"):
            now.ledger.array(owner)
        elif isinstance(owner, nn.Module):
            now.ledger.modules(owner)
        else:
            found = inspect.getattr_static(type(owner), "__setitem__", None)
            if isinstance(found, types.FunctionType) and is_library(found.__code__.co_filename):
                keep_owner(now, owner)
            if not isinstance(found, types.FunctionType):
                now.refuse(f"they write items of a {type(owner).__name__}, which cannot be undone")
            else:
                self.check_function(now, found, of=owner)
        return owner

    def filled(self, value: Any) -> None:
        """`value += ...`, which may change the value itself."""
        now = self.now()
        if now is None or isinstance(value, (*FIXED, Tensor)):
            return
        if isinstance(value, CONTAINERS) or hasattr(value, "ctypes"):
            self.items(value)

    def augmented(self, owner: Any, name: str) -> Any:
        """`owner.name += ...`."""
        if self.now() is not None:
            self.store(owner, name)
            self.filled(getattr(owner, name, None))
        return owner

    def items_filled(self, owner: Any) -> Any:
        """`owner[...] += ...`."""
        if self.now() is not None:
            self.items(owner)
            if isinstance(owner, CONTAINERS) and not isinstance(owner, bytearray):
                for value in owner.values() if isinstance(owner, dict) else owner:
                    self.filled(value)
        return owner

    def variables(self, names: tuple[str, ...]) -> None:
        """Global variables of the function that asks, which it declares."""
        now = self.now()
        if now is not None:
            for name in names:
                now.ledger.variable(sys._getframe(1).f_globals, name)
