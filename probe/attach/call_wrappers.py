"""Puts a `__call__` of ours on `nn.Module` or on single classes, and takes it away again.

Used by `root_calls.py` alone, which decides what is wrapped when. Built so that torch.compile, torch.fx and
the text of tracebacks treat it like the `__call__` that it stands for.
"""

from __future__ import annotations

import builtins
import inspect
import os
from collections.abc import Callable, Container
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, Final, Protocol

import torch
from torch import nn

from ..compat.torch_modules import CALL
from .armed_calls import armed_calls
from .module_call import module_call

_OWN_FOLDER: Final = str(Path(__file__).parents[1]) + os.sep
Dispatch = Callable[[Callable[..., Any], nn.Module, Any, Any], Any]


class OpenRoots(Protocol):
    """State of one thread."""

    is_full: bool
    """Whether no inner call needs a look."""


class ThreadState(Protocol):
    """State of the calling thread."""

    @property
    def open(self) -> OpenRoots:
        """Which roots it is inside of."""
        ...


# Compiled under the name of torch's own file: by it, torch.compile decides what belongs to torch. Whatever is
# read before `is_compiling()` would become a guard of the compiled graph.
_MODULE_SOURCE: Final = """
def _wrapped_call_impl(self, *args, **kwargs):
    if is_compiling() or thread.open.is_full:
        return original(self, *args, **kwargs)
    try:
        return dispatch(original, self, args, kwargs)
    except BaseException as error:
        hide_own_frames(error.__traceback__)
        raise
"""
_CLASS_SOURCE: Final = """
def _wrapped_call_impl(self, *args, **kwargs):
    if is_compiling():
        return original(self, *args, **kwargs)
    # No Python function is called here: dynamo, which may run the caller, would compile it.
    followed, begin = False, armed.begin_forward
    if begin is not None:
        try:
            followed = begin(self, args, kwargs)
            if followed:
                output = inherited(self, *args, **kwargs)
                end = armed.end_forward
                is_held = end is not None and end(output)
        except BaseException as error:
            hide_own_frames(error.__traceback__)
            if armed.follower is not None:
                armed.follower.forward_raised(error)
            raise
    if followed:
        if not is_held:
            armed.follower.forward_was_odd(output)
        return output
    if followed is None or id(self) not in related:
        return inherited(self, *args, **kwargs)
    try:
        return dispatch(inherited, self, args, kwargs)
    except BaseException as error:
        hide_own_frames(error.__traceback__)
        raise
"""
_INHERITED_SOURCE: Final = """
def _call_impl(self, *args, **kwargs):
    # Looked up anew: torch.fx and others replace `Module.__call__` for a while.
    return super(owner, self).__call__(*args, **kwargs)
"""


class CallWrappers:
    """The wrappers that are in place, on `nn.Module` and on classes of roots.

    Args:
        dispatch: is given the wrapped function and its arguments, and runs it.
        related: identities of the modules whose calls matter once only classes are wrapped.
        thread: state of the calling thread.
    """

    def __init__(self, dispatch: Dispatch, related: Container[int], thread: ThreadState) -> None:
        self._scope: dict[str, Any] = {
            "dispatch": dispatch,
            "related": related,
            "thread": thread,
            "is_compiling": torch.compiler.is_compiling,
            "hide_own_frames": hide_own_frames,
            "armed": armed_calls,
        }
        self._everywhere: FunctionType | None = None
        self._of_class: dict[type[nn.Module], tuple[FunctionType, Any]] = {}
        """Wrapper, and what stood in the class itself before it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wrapped."""
        return self._everywhere is None and not self._of_class

    def wraps_only(self, owners: Container[type[nn.Module]]) -> bool:
        """Whether some of these classes have a wrapper, and nothing else has."""
        return self._everywhere is None and all(owner in owners for owner in self._of_class)

    def is_overridden(self, owner: type[nn.Module]) -> bool:
        """Whether a class, or one of its bases below `nn.Module`, has a `__call__` of the user's own."""
        for base in owner.__mro__:
            if base is nn.Module:
                break
            ours = self._of_class.get(base)
            if "__call__" in base.__dict__ and (ours is None or ours[1] is not None):
                return True
        return False

    def wrap_every_module(self) -> None:
        """Replace `nn.Module.__call__`; nothing to do if it is."""
        if self._everywhere is not None:
            return
        self._everywhere = module_call.replace(
            lambda original: _build(_MODULE_SOURCE, {**self._scope, "original": original})
        )

    def unwrap_every_module(self) -> None:
        """Put `nn.Module.__call__` back; idempotent."""
        if self._everywhere is None:
            return
        wrapper = self._everywhere
        if not module_call.put_back(wrapper):
            wrapper.__globals__["dispatch"] = _pass_on
        # Last, as everywhere here: a signal's handler may raise in between, and then it is done again.
        self._everywhere = None

    def wrap_class(self, owner: type[nn.Module]) -> None:
        """Give a class a `__call__`; nothing to do if it has ours."""
        if owner in self._of_class or owner is nn.Module:
            return
        before = owner.__dict__.get("__call__")
        original: Any = owner.__call__
        if self._everywhere is not None and original is self._everywhere:
            # Compiled graphs are guarded by what they were made of: not by what is here for a while only.
            original = self._everywhere.__globals__["original"]
        scope = {**self._scope, "owner": owner, "original": original, "inherited": original}
        if before is None:
            scope["inherited"] = _build(_INHERITED_SOURCE, scope)
        wrapper = _build(_CLASS_SOURCE, scope)
        self._of_class[owner] = wrapper, before
        try:
            _put(owner, wrapper)
        except BaseException:
            self._unwrap_class(owner)
            raise

    def unwrap_classes(self, *, but: Container[type[nn.Module]] = ()) -> None:
        """Take ours from all classes that are not in `but`."""
        for owner in [owner for owner in self._of_class if owner not in but]:
            self._unwrap_class(owner)

    def _unwrap_class(self, owner: type[nn.Module]) -> None:
        wrapper, before = self._of_class[owner]
        # Where someone else has wrapped ours in the meantime, theirs stays, and ours passes on.
        if owner.__dict__.get("__call__") is wrapper:
            if before is None:
                del owner.__call__
            else:
                _put(owner, before)
        del self._of_class[owner]


def hide_own_frames(trace: TracebackType | None) -> None:
    """Cut the probe's frames out of a traceback that begins at a wrapper: users need not read them."""
    if trace is None:
        return
    following = trace.tb_next
    while following is not None and is_own_frame(following.tb_frame):
        following = following.tb_next
    trace.tb_next = following


def is_own_frame(frame: FrameType) -> bool:
    """Whether the code of a frame is the probe's, also where it goes by torch's file name."""
    marked = frame.f_globals.get("hide_own_frames") is hide_own_frames
    return marked or frame.f_code.co_filename.startswith(_OWN_FOLDER)


def function_in_torch(source: str, scope: dict[str, Any], *, line: int = 0) -> FunctionType:
    """Make a function that stands for one of torch's: it is of the file that `nn.Module` is in.

    Args:
        source: a `def`, a constant; compiled once a process, as models and sampled forwards come and go.
        scope: its globals.
        line: of the function that it stands for; 0 where its own does.
    """
    # A code of its own each time: what dynamo has compiled for one holds for the globals of that one.
    scope.setdefault("__builtins__", builtins)
    return FunctionType(_compiled(source, line).replace(), scope)


@lru_cache(maxsize=32)
def _compiled(source: str, line: int) -> CodeType:
    compiled = compile("\n" * (line - 2) + source, nn.modules.module.__file__, "exec")
    return next(constant for constant in compiled.co_consts if isinstance(constant, CodeType))


def _build(source: str, scope: dict[str, Any]) -> FunctionType:
    """Make a wrapper at the line of the function that it stands for."""
    return function_in_torch(source, scope, line=_line_of_torchs_own())


def _line_of_torchs_own() -> int:
    plain = getattr(nn.Module, CALL, None)
    return plain.__code__.co_firstlineno if inspect.isfunction(plain) else 2


def _put(owner: type[nn.Module], function: Any) -> None:
    setattr(owner, "__call__", function)  # noqa: B010 - mypy refuses the plain form


def _pass_on(call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    return call(module, *args, **kwargs)
