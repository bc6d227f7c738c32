"""Stops lines that are run again where they come to the step's own call of backward."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from ...compat import torch_modes
from ...errors import ReplayError
from ...threads.stacks import inner_torch_removed, place_in_code, raw_stack
from .loss_code import RESULT, LossCode

REFRESH: Final = "__nanscope_refresh__"
"""What the lines call after a statement: inner functions may have assigned variables of theirs."""
_MOST_FRAMES: Final = 256


class _BackwardReached(BaseException):
    """Ends the lines; no `except Exception` of the script's may hold it up."""


@contextmanager
def up_to_backward(code: LossCode, namespace: dict[str, Any], loss: Tensor) -> Iterator[None]:
    """Run the code in this block up to the step's call of backward; what that is given is the result.

    Calls of backward elsewhere, or on another loss, do nothing meanwhile. Lines that need not be stopped run
    as they are.

    Args:
        code: the lines.
        namespace: that they run in.
        loss: what backward was called on in the step.
    """
    if code.until is None:
        yield
        return
    until, shared = code.until, code.shared
    namespace[REFRESH] = lambda: None if shared is None else shared.synchronise(namespace)

    def is_reached(given: Any) -> bool:
        site = inner_torch_removed(raw_stack(sys._getframe(2), limit=_MOST_FRAMES))
        if not isinstance(given, Tensor) or place_in_code(site[-1]) != until:
            return False
        with torch_modes.own_operations():
            return is_same(given.detach(), loss)

    with _backward_replaced(is_reached, namespace):
        try:
            yield
        except _BackwardReached:
            return
    raise ReplayError("the lines of the loss do not come to the step's call of backward again")


@contextmanager
def _backward_replaced(is_reached: Callable[[Any], bool], namespace: dict[str, Any]) -> Iterator[None]:
    thread, original = threading.get_ident(), torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        # Another thread may train meanwhile.
        if threading.get_ident() != thread:
            return original(tensors, *args, **kwargs)
        given = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
        if is_reached(given):
            namespace[RESULT] = given
            raise _BackwardReached
        return None

    setattr(torch.autograd, "backward", backward)  # noqa: B010 - mypy refuses the plain form
    try:
        yield
    finally:
        setattr(torch.autograd, "backward", original)  # noqa: B010


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same elements; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
