"""How the probe gets along with torch.compile: what dynamo leaves alone, and the private symbols for it.

Where torch lacks one of them nothing is lost but that something of ours is compiled or looked at in vain.
Called when something is wrapped, and by the wrappers on the threads that train.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

from .torch_lookup import symbol

P = ParamSpec("P")
R = TypeVar("R")


def _nothing(*_: Any) -> None:
    return None


# Functions of C: dynamo would compile a Python function called while it looks at this thread's frames.
dynamo_callback: Callable[[], Any] = symbol("_dynamo", "eval_frame", "get_eval_frame_callback") or _nothing
"""What dynamo does with the frames that this thread runs; None where it leaves them alone."""
set_dynamo_callback: Callable[[Any], Any] = symbol("_dynamo", "eval_frame", "set_eval_frame") or _nothing
"""Have dynamo treat the frames that this thread runs in another way: None leaves them alone."""


def tell_dynamo_of_call(before: Any, now: Any) -> None:
    """Have torch.compile take `now` for the `nn.Module.__call__` that nobody replaced, if it took `before`.

    It then goes straight to `forward`, and compiles what it would without the replacement.
    """
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if getattr(module, "unpatched_nn_module_call", None) is before:
            setattr(module, "unpatched_nn_module_call", now)  # noqa: B010 - mypy refuses the plain form


def has_compiled() -> bool:
    """Whether dynamo has compiled anything in this process; True where this torch does not say."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return module is not None and getattr(module, "FRAME_COUNTER", 1) != 0


def never_compile(function: Callable[..., Any]) -> None:
    """Have dynamo run `function` as it is, and still look at what it calls."""
    frames = symbol("_dynamo", "eval_frame")
    try:
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, default))
    except AttributeError:
        # Then it is compiled where it is called from a compiled function with a graph break.
        return


def with_dynamo(callback: Any, call: Callable[P, R]) -> Callable[P, R]:
    """Return `call` as it is to be run after `set_dynamo_callback(None)`: with the `callback` from before."""

    def resumed(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # While it is set, dynamo would compile any Python function of ours.
            set_dynamo_callback(callback)
            return call(*args, **kwargs)
        finally:
            set_dynamo_callback(None)

    return resumed


def unseen_by_dynamo(function: Callable[P, R]) -> Callable[P, R]:
    """Keep dynamo from looking at `function` and what it calls, also where a compiled function calls it.

    Cheaper than `torch.compiler.disable`, and right for a dynamo that is loaded later.
    """

    @functools.wraps(function)
    def unseen(*args: P.args, **kwargs: P.kwargs) -> R:
        callback = dynamo_callback()
        if callback is None:
            return function(*args, **kwargs)
        try:
            set_dynamo_callback(None)
            return function(*args, **kwargs)
        finally:
            set_dynamo_callback(callback)

    never_compile(unseen)
    return unseen


def compiled_as(original: Callable[P, R], function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, unseen by dynamo, in place of which a graph has `original`: nothing breaks there."""
    unseen = unseen_by_dynamo(function)

    @functools.wraps(function)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return unseen(*args, **kwargs)

    never_compile(chosen)
    return chosen


@contextmanager
def compilation_off() -> Iterator[None]:
    """Run compiled functions eagerly inside the block; nothing to do where dynamo was never loaded."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
