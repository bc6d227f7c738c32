"""What stands between a call and its operation: dispatch modes, `torch.func`, tracing, tensor subclasses.

`torch_dynamo.py` has what concerns torch.compile. Used on the thread whose operations it is about.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .torch_lookup import symbol


def available() -> dict[str, bool]:
    """Return which of the private symbols here this torch has."""
    return {
        "torch._C._functorch.is_functorch_wrapped_tensor": _is_functorch_wrapped is not None,
        "torch._C.DisableTorchFunctionSubclass": symbol("DisableTorchFunctionSubclass") is not None,
        "torch.utils._python_dispatch.TorchDispatchMode": DispatchMode is not object,
    }


DispatchMode: type[Any] = getattr(
    sys.modules.get("torch.utils._python_dispatch"), "TorchDispatchMode", object
)
"""Sees every op below autograd; where torch has none, every replay declines (`available` says so)."""


_is_functorch_wrapped: Callable[[Tensor], bool] | None = symbol("_functorch", "is_functorch_wrapped_tensor")


is_functorch_wrapped: Callable[[Tensor], bool] = _is_functorch_wrapped or (lambda _: False)
"""Whether a tensor belongs to a `torch.func` transform (vmap, grad); False where torch cannot say."""


_transform_level: Callable[[], int | None] | None = symbol("_functorch", "maybe_current_level")


transform_level: Callable[[], int | None] = _transform_level or (lambda: None)
"""Level of the innermost `torch.func` transform that runs; None outside of all."""


def in_transform() -> bool:
    """Whether a `torch.func` transform runs: what ops return then, ours included, has no memory to read."""
    return _transform_level is not None and _transform_level() is not None


is_jit_tracing: Callable[[], bool] = symbol("_is_tracing") or (lambda: False)
"""Whether `torch.jit.trace` is recording what this thread does."""


@contextmanager
def own_operations() -> Iterator[None]:
    """Run tensor operations of ours: no graph, no autocast, and unseen by modes that the script has active.

    A selective checkpoint, for instance, records operations by their order; it must not count ours.
    """
    with torch.no_grad():
        if not _modes_are_active():
            yield
            return
        with torch._C.DisableTorchFunction(), _without_dispatch_modes():
            yield


def _modes_are_active() -> bool:
    depths = (symbol("_len_torch_dispatch_stack"), symbol("_len_torch_function_stack"))
    return any(depth is not None and depth() > 0 for depth in depths)


def _without_dispatch_modes() -> Any:
    dispatch = sys.modules.get("torch.utils._python_dispatch")
    disable = getattr(dispatch, "_disable_current_modes", None)
    return nullcontext() if disable is None else disable()


without_subclass_code: Callable[[], AbstractContextManager[None]] = (
    symbol("DisableTorchFunctionSubclass") or nullcontext
)
"""Inside it an attribute of a tensor is read without the `__torch_function__` of the tensor's class."""


def schema_of(func: Any) -> Any | None:
    """The schema of an operation that a dispatch mode is given; None for a higher-order operator."""
    return getattr(func, "_schema", None)


class EagerMode(DispatchMode):  # type: ignore[misc]
    """A dispatch mode of ours: sees what runs eagerly, also below a higher-order operator."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The default wraps `__torch_dispatch__` in something that imports dynamo, for 0.7 s; a replay runs
        # compiled functions eagerly anyway.
        return False
