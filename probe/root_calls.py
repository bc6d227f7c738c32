"""Tells sessions of the outermost calls of their models, by a `__call__` on the *classes* of watched roots.

Nothing is put on a model. Called by `hooks.py` at attach and detach; the wrapper runs on the thread that
trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn


class CallListener(Protocol):
    """What is told of a root's calls."""

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run `call(root, *args, **kwargs)`, the real forward, and return its result."""
        ...


# torch.compile decides by the code's file name what belongs to torch; built under its own file name, this
# wrapper is treated like the `__call__` that it stands for: no graph break, no extra recompilation.
_WRAPPER_SOURCE = """
def __call__(self, *args, **kwargs):
    if is_compiling():
        return original(self, *args, **kwargs)
    listener = listeners.get(id(self))
    if listener is None:
        # Looked up anew: torch.fx and others replace `Module.__call__` for a while.
        return super(owner, self).__call__(*args, **kwargs) if inherits else original(self, *args, **kwargs)
    return listener.call_root(original, self, args, kwargs)
"""


class RootCalls:
    """Wraps `__call__` on the classes of watched roots, once per class however many roots it has."""

    def __init__(self) -> None:
        self._listeners: dict[int, CallListener] = {}
        self._classes: dict[int, type[nn.Module]] = {}
        self._uses: dict[type[nn.Module], int] = {}
        self._replaced: dict[type[nn.Module], Any] = {}
        self._wrappers: dict[type[nn.Module], Any] = {}

    def add(self, root: nn.Module, listener: CallListener) -> int:
        """Watch `root`; returns the key for `remove`. The root itself is not referenced."""
        owner = type(root)
        if self._uses.get(owner, 0) == 0:
            self._wrap(owner)
        self._uses[owner] = self._uses.get(owner, 0) + 1
        self._listeners[id(root)] = listener
        self._classes[id(root)] = owner
        return id(root)

    def remove(self, key: int) -> None:
        """Stop watching; the last root of a class takes the wrapper with it."""
        owner = self._classes.pop(key, None)
        if owner is None:
            return
        del self._listeners[key]
        self._uses[owner] -= 1
        if self._uses[owner] == 0:
            del self._uses[owner]
            self._unwrap(owner)

    def _wrap(self, owner: type[nn.Module]) -> None:
        self._replaced[owner] = owner.__dict__.get("__call__")
        scope = {
            "original": owner.__call__,
            "owner": owner,
            "inherits": self._replaced[owner] is None and owner is not nn.Module,
            "listeners": self._listeners,
            "is_compiling": torch.compiler.is_compiling,
        }
        exec(compile(_WRAPPER_SOURCE, nn.modules.module.__file__, "exec"), scope)  # noqa: S102 - a constant
        self._wrappers[owner] = scope["__call__"]
        setattr(owner, "__call__", scope["__call__"])  # noqa: B010 - mypy refuses the plain form

    def _unwrap(self, owner: type[nn.Module]) -> None:
        replaced, wrapper = self._replaced.pop(owner), self._wrappers.pop(owner)
        if owner.__dict__.get("__call__") is not wrapper:
            # Someone else has wrapped ours in the meantime: then theirs stays, and ours passes everything on.
            return
        if replaced is None:
            del owner.__call__
        else:
            setattr(owner, "__call__", replaced)  # noqa: B010


root_calls = RootCalls()
"""Of this process: every session shares it."""
