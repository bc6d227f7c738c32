"""`nn.Module.__call__`, and `_call_impl` behind it, which ours replace, each for a while and on any thread.

`call_wrappers.py` replaces it while roots are looked for, `observation/module_calls.py` round a sampled
forward. Whichever ends first may have the other's wrapper, or a stranger's, on top of its own: then its own
stays below, does nothing, and goes with the one that was put on top of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

from torch import nn

from ..compat.profiler_starts import ProfilerStarts
from ..compat.torch_dynamo import tell_dynamo_of_call
from ..compat.torch_modules import IMPLEMENTATION

_IS_OVER: Final = "is_over"


class ModuleCall:
    """The place where a function of `nn.Module` is. One object for each, shared: it has the lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Torch's profiler knows calls of modules by the code of `__call__`, see `torchs_own`.
        self._profiles = ProfilerStarts(self.torchs_own) if name == "__call__" else None
        # The garbage collector may end a session at any moment.
        self._lock = threading.RLock()

    def replace(
        self, build: Callable[[Any], FunctionType], *, again: FunctionType | None = None
    ) -> FunctionType:
        """Put a wrapper there and return it.

        Args:
            build: makes a wrapper of what is there now, with it as the global `original`.
            again: a wrapper that was put back; used instead of a new one where it stands for what is there.
        """
        wrapper = again
        try:
            with self._lock:
                original = nn.Module.__dict__[self.name]
                if wrapper is None or wrapper.__globals__["original"] is not original:
                    wrapper = build(original)
                wrapper.__globals__[_IS_OVER] = False
                self._put(wrapper, instead_of=original)
        except BaseException:
            # A signal's handler: nobody would know of the wrapper.
            if wrapper is not None:
                self.put_back(wrapper)
            raise
        return wrapper

    def put_back(self, wrapper: FunctionType) -> bool:
        """Have what `wrapper` stands for there again; False where it is not on top. May be called again.

        Where another's was put on top of it, its users have to have it do nothing in that case.
        """
        with self._lock:
            wrapper.__globals__[_IS_OVER] = True
            original = _beneath(wrapper)
            is_on_top = nn.Module.__dict__[self.name] is wrapper
            self._put(original, instead_of=wrapper, is_there=is_on_top)
            return is_on_top

    @contextmanager
    def torchs_own(self) -> Iterator[None]:
        """Have torch's own function there for a moment.

        Torch's profiler knows calls of modules by the code object that is there when the first profile of a
        process begins: with a wrapper's, no later profile would have a module.
        """
        with self._lock:
            present = nn.Module.__dict__[self.name]
            own = present
            while _IS_OVER in getattr(own, "__globals__", {}):
                own = own.__globals__["original"]
            try:
                setattr(nn.Module, self.name, own)
                yield
            finally:
                setattr(nn.Module, self.name, present)

    def _put(self, function: Any, *, instead_of: Any, is_there: bool = True) -> None:
        """Put a function there, unless `instead_of` is somewhere below what is there."""
        if is_there:
            setattr(nn.Module, self.name, function)
        if self._profiles is not None:
            is_ours = _IS_OVER in getattr(nn.Module.__dict__[self.name], "__globals__", {})
            self._profiles.watch() if is_ours else self._profiles.stop()
        if self.name == "__call__":
            tell_dynamo_of_call(instead_of, function)


def _beneath(function: Any) -> Any:
    """What is there once all wrappers of ours that are over are taken away, from the top down."""
    while getattr(function, "__globals__", {}).get(_IS_OVER):
        function = function.__globals__["original"]
    return function


module_call: Final = ModuleCall("__call__")
module_implementation: Final = ModuleCall(IMPLEMENTATION)
"""Of this process; see `module_calls.py` for which is replaced when."""
