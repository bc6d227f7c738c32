"""Is asked before each call and each write of the script's own code while a step is made again.

What is to change is kept first and put back later; what cannot be put back is refused before it happens.
`GUARD` answers for the thread that replays; on all others, and at all other times, it lets everything pass.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import Tensor, nn

from ...threads.whereabouts import is_library
from ..own_generators import restoring
from ..plain_containers import CONTAINERS, PLAIN
from .allowed_calls import is_allowed, is_outside
from .guarded_writes import FIXED, GuardedWrites
from .muted_output import is_output
from .replaying import Replaying, is_of_the_script, keep_owner

_PURE: Final = frozenset(
    "copy count index get keys values items union intersection difference symmetric_difference "
    "issubset issuperset isdisjoint most_common elements total __len__ __contains__ __iter__ "
    "__getitem__ __eq__".split()
)
_OF_C: Final = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_OF_ARRAYS: Final = frozenset("fill sort put itemset resize partition setfield byteswap".split())
_OF_TENSORS: Final = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad"})
_REFUSED_OF_TENSORS: Final = frozenset({"share_memory_", "set_", "resize_"})
_NO_NAMES: Final[tuple[str, ...]] = ()


class EffectGuard(GuardedWrites):
    """Answers for every thread; all methods return what the code goes on with."""

    def __init__(self) -> None:
        super().__init__()
        self._stand_ins: dict[Any, Callable[[Replaying], Any]] = {
            builtins.print: lambda now: partial(_print, now),
            builtins.open: lambda now: partial(_open, now),
            builtins.setattr: lambda now: partial(_with_store, now, builtins.setattr),
            builtins.delattr: lambda now: partial(_with_store, now, builtins.delattr),
        }

    # -- calls

    def function(self, called: Any, names: tuple[str, ...] = _NO_NAMES) -> Any:
        """`called(...)`, with keyword arguments of these names."""
        now = self.now()
        if now is None:
            return called
        stand_in = self._stand_ins.get(called) if type(called) is types.BuiltinFunctionType else None
        if stand_in is not None:
            return stand_in(now)
        self._check(now, called, names)
        return called

    def method(self, owner: Any, name: str, names: tuple[str, ...] = _NO_NAMES) -> Any:
        """`owner.name(...)`; what is returned has the method under the same name."""
        now = self.now()
        if now is None or type(owner) in FIXED:
            return owner
        if is_output(owner):
            return types.SimpleNamespace(**{name: _write_nothing})
        if isinstance(owner, super):
            return self._of_super(now, owner, name)
        if isinstance(owner, types.ModuleType):
            value = getattr(owner, name)
            if type(value) is types.BuiltinFunctionType and value in self._stand_ins:
                return types.SimpleNamespace(**{name: self.function(value)})
            self._check(now, value, names)
            return owner
        if isinstance(owner, type):
            return self._of_class(now, owner, name, names)
        return self._of_object(now, owner, name, names)

    def _of_super(self, now: Replaying, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        if isinstance(value, types.MethodType):
            function: Any = value.__func__
            keep_owner(now, value.__self__)
            self.check_function(now, function)
        elif owner.__self__ is not None:
            self._check_of_c(now, owner.__self__, name, value)
        return owner

    def _of_class(self, now: Replaying, owner: type, name: str, names: tuple[str, ...]) -> Any:
        value = getattr(owner, name)
        is_of_objects = isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType)
        if is_of_objects and not issubclass(owner, Tensor):

            def unbound(given: Any, /, *args: Any, **kwargs: Any) -> Any:
                self._check_of_c(now, given, name, value)
                return value(given, *args, **kwargs)

            return types.SimpleNamespace(**{name: unbound})
        if not is_of_objects:
            self._check(now, value, names)
        return owner

    def _of_object(self, now: Replaying, owner: Any, name: str, names: tuple[str, ...]) -> Any:
        if restoring(owner) is not None:
            now.ledger.generator(owner)
            return owner
        try:
            found = inspect.getattr_static(owner, name)
        except AttributeError:
            found = _MISSING
        if name in getattr(owner, "__dict__", {}):
            # A function that is kept on an object is no method of it.
            self._check(now, found, names)
            return owner
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if isinstance(found, types.FunctionType):
            if is_library(found.__code__.co_filename):
                keep_owner(now, owner)
            self.check_function(now, found, of=owner)
        elif isinstance(found, _OF_C):
            self._check_of_c(now, owner, name, found)
        else:
            # A property, a descriptor, `__getattr__` or a plain attribute: what it gives is what counts.
            if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
                now.take(found.fget)
            value = getattr(owner, name)
            self._check(now, value, names)
            return types.SimpleNamespace(**{name: value})
        return owner

    def _check(self, now: Replaying, called: Any, names: tuple[str, ...] = _NO_NAMES) -> None:
        """Keep what a call changes, or refuse it."""
        if isinstance(called, types.FunctionType):
            self.check_function(now, called)
        elif isinstance(called, types.MethodType):
            function: Any = called.__func__
            if not isinstance(function, types.FunctionType):
                self._check(now, function)
                return
            if is_library(function.__code__.co_filename):
                keep_owner(now, called.__self__)
            self.check_function(now, function, of=called.__self__)
        elif isinstance(called, partial):
            self._check(now, called.func, (*names, *called.keywords))
        elif isinstance(called, type):
            self._check_class(now, called)
        elif isinstance(called, nn.Module):
            now.ledger.modules(called)
        elif isinstance(called, _OF_C):
            owner: Any = called.__objclass__
            if not (issubclass(Tensor, owner) or owner in FIXED or called.__name__ in _PURE):
                now.refuse(
                    f"they call {called.__qualname__}, which may have side effects that cannot be undone"
                )
        elif isinstance(called, types.BuiltinFunctionType | types.MethodWrapperType):
            self._check_builtin(now, called, names)
        else:
            self._check_instance(now, called, names)

    def _check_class(self, now: Replaying, kind: type) -> None:
        made = inspect.getattr_static(kind, "__init__", None)
        if isinstance(made, types.FunctionType) and id(made.__code__) in self._known:
            return
        if not is_of_the_script(kind):
            if not is_allowed(kind.__module__, kind.__name__):
                now.refuse(
                    f"they make a {kind.__qualname__}, which may have side effects that cannot be undone"
                )
        elif isinstance(made, types.FunctionType):
            self.check_function(now, made, of=kind)

    def _check_builtin(self, now: Replaying, called: Any, names: tuple[str, ...]) -> None:
        owner = called.__self__
        if owner is not None and not isinstance(owner, types.ModuleType | type):
            self._check_of_c(now, owner, called.__name__, called)
            return
        module = called.__module__ or getattr(owner, "__module__", None) or ""
        if not is_allowed(module, called.__name__):
            why = f"they call {called.__qualname__}, which may have side effects that cannot be undone"
            now.refuse(why, is_certain=is_outside(module, called.__name__))
        self._check_out(now, module, called.__name__, names)

    def _check_instance(self, now: Replaying, called: Any, names: tuple[str, ...]) -> None:
        kind = type(called)
        if self._is_watched(now, inspect.getattr_static(kind, "__call__", None)):
            return
        name = getattr(called, "__name__", kind.__name__)
        name = name if isinstance(name, str) else kind.__name__
        module = getattr(called, "__module__", None) or kind.__module__
        if kind.__module__.partition(".")[0] in ("functools", "torch", "numpy"):
            # A cache of a function of the script's, or one that torch compiles.
            self._check_wrapped(now, called)
            module = kind.__module__ if is_of_the_script(called) else module
        if not is_allowed(str(module), name):
            now.refuse(f"they call {name}, which may have side effects that cannot be undone")
        self._check_out(now, str(module), name, names)

    def _check_wrapped(self, now: Replaying, called: Any) -> None:
        wrapped = getattr(called, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType) and not is_library(wrapped.__code__.co_filename):
            self.check_function(now, wrapped)

    def _check_out(self, now: Replaying, module: str, name: str, names: tuple[str, ...]) -> None:
        if "out" in names and module.partition(".")[0] == "numpy":
            now.refuse(f"they write into an array by {name}", is_certain=True)

    def _check_of_c(self, now: Replaying, owner: Any, name: str, found: Any) -> None:
        """A method that is written in C."""
        kind = getattr(found, "__objclass__", type(owner))
        if isinstance(owner, CONTAINERS):
            if name in ("__setattr__", "__delattr__"):
                now.ledger.attributes(owner)
            elif name not in _PURE:
                now.ledger.container(owner)
        elif isinstance(owner, Tensor):
            self._check_tensor(now, owner, name)
        elif type(owner).__module__ == "numpy" and hasattr(owner, "ctypes"):
            if name in _OF_ARRAYS:
                now.ledger.array(owner)
            elif name.startswith(("to_file", "tofile", "dump", "setflags")):
                now.refuse(f"they call ndarray.{name}, which may have side effects that cannot be undone")
        elif restoring(owner) is not None:
            now.ledger.generator(owner)
        elif hasattr(type(owner), "__next__"):
            self._check_iterator(now, owner)
        elif kind is object:
            now.ledger.attributes(owner)
            keep_owner(now, owner)
        elif not isinstance(owner, FIXED):
            module = kind.__module__ if isinstance(kind, type) else type(owner).__module__
            if not is_allowed(module, name):
                why = (
                    f"they call {type(owner).__name__}.{name}, which may have side effects that "
                    "cannot be undone"
                )
                now.refuse(why, is_certain=is_outside(module, name))

    def _check_tensor(self, now: Replaying, tensor: Tensor, name: str) -> None:
        if name == "requires_grad_":
            now.ledger.of_tensor(tensor, "requires_grad") if tensor.is_leaf else None
        elif name in _REFUSED_OF_TENSORS or (name in _OF_TENSORS and not now.is_fresh(tensor)):
            now.refuse(f"they call Tensor.{name}, which may have side effects that cannot be undone")

    # -- values that are read on

    def argument(self, value: Any) -> Any:
        """A value that is given to a call, or taken apart."""
        now = self.now()
        if now is None:
            return value
        if hasattr(type(value), "__next__"):
            self._check_iterator(now, value)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            # `map(kept.append, values)`
            owner = value.__self__
            if owner is not None and not isinstance(owner, types.ModuleType | type):
                self._check_of_c(now, owner, value.__name__, value)
        return value

    def iterated(self, value: Any) -> Any:
        """A value that a loop goes through."""
        now = self.now()
        if now is None or type(value) in PLAIN or isinstance(value, (*FIXED, Tensor)):
            return value
        if hasattr(type(value), "__next__"):
            self._check_iterator(now, value)
            return value
        is_own = self._is_watched(now, inspect.getattr_static(type(value), "__iter__", None))
        is_known = is_own or isinstance(value, CONTAINERS) or is_of_the_script(type(value))
        if not is_known and not is_allowed(type(value).__module__, "__iter__"):
            now.refuse(
                f"they go through a {type(value).__name__}, which may have side effects that cannot be undone"
            )
        return value

    def _check_iterator(self, now: Replaying, iterator: Any) -> None:
        found = inspect.getattr_static(type(iterator), "__next__", None)
        if isinstance(found, types.FunctionType) and id(found.__code__) in self._known:
            return
        if not now.is_fresh(iterator):
            kind = type(iterator).__name__
            now.refuse(f"they read from an iterator, a {kind}, which cannot be read again", is_certain=True)

    def entered(self, manager: Any) -> Any:
        """What a `with` enters."""
        now = self.now()
        if now is not None:
            is_own = self._is_watched(now, inspect.getattr_static(type(manager), "__enter__", None))
            module = type(manager).__module__
            if not is_own and not is_allowed(module, type(manager).__name__):
                now.refuse(
                    f"they enter a {type(manager).__name__}, which may have side effects that "
                    "cannot be undone"
                )
        return manager

    def _is_watched(self, now: Replaying, found: Any) -> bool:
        """Whether a special method asks the guard, as those of all files that are no libraries' come to."""
        if not isinstance(found, types.FunctionType):
            return False
        if id(found.__code__) not in self._known and not is_library(found.__code__.co_filename):
            now.take(found)
        return id(found.__code__) in self._known


_MISSING: Final = object()


def _open(now: Replaying, file: Any, mode: Any = "r", *args: Any, **options: Any) -> Any:
    """Stands in for `open`."""
    is_written = any(letter in str(mode) for letter in "wax+")
    now.refuse(f"they open a file ({str(file)[-80:]})", is_certain=is_written)
    return builtins.open(file, mode, *args, **options)  # noqa: PTH123 - as the script calls it


def _print(now: Replaying, *values: Any, file: Any = None, **options: Any) -> None:
    """Stands in for `print`: the step has printed it already."""
    if file is None or is_output(file):
        return
    if not now.is_fresh(file):
        now.refuse("they print into a file, which cannot be undone", is_certain=True)
    print(*values, file=file, **options)  # as the script calls it, into what the replay has made


def _with_store(now: Replaying, change: Callable[..., Any], owner: Any, name: str, *value: Any) -> Any:
    """Stands in for `setattr` and `delattr`."""
    GUARD.store(owner, name)
    return change(owner, name, *value)


def _write_nothing(*values: Any, **options: Any) -> int:
    """Stands in for a method of `sys.stdout`: its text was written in the step."""
    return sum(len(value) for value in values if isinstance(value, str))


GUARD: Final = EffectGuard()
