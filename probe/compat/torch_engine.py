"""Where autograd's engine stands on this thread, and hooks on what it computes.

What a node of the graph is stands in `torch_nodes.py`. Cheap enough for every step; waits for no device.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..guard import suppressed
from .torch_lookup import symbol


def available() -> dict[str, bool]:
    """Return which of the private symbols here this torch has."""
    return {
        "torch._C._autograd._get_sequence_nr": _sequence_nr is not None,
        "torch._C._current_autograd_node": _current_node is not None,
        "torch._C._current_graph_task_id": _graph_task_id is not None,
        "torch._C._functorch.peek_interpreter_stack": _interpreter is not None,
        "torch.autograd.Variable._execution_engine": hasattr(torch.autograd.Variable, "_execution_engine"),
    }


_sequence_nr: Callable[[], int] | None = symbol("_autograd", "_get_sequence_nr")
_current_node: Callable[[], Any] | None = symbol("_current_autograd_node")


_interpreter: Callable[[], Any] | None = symbol("_functorch", "peek_interpreter_stack")


_graph_task_id: Callable[[], int] | None = symbol("_current_graph_task_id")


graph_task_id: Callable[[], int] = _graph_task_id or (lambda: -1)
"""Id of the backward pass that this thread is inside, -1 outside of one (and where torch cannot say)."""


def in_transform() -> bool:
    """Whether this thread is inside a transform of `torch.func`, which hands out no parameter's gradient."""
    return _interpreter is not None and _interpreter() is not None


def unwatched_grad() -> Callable[..., Any]:
    """Return `torch.autograd.grad` as torch has it: nobody is told of its calls, and no frame is between."""
    grad: Callable[..., Any] = torch.autograd.grad
    while (inner := getattr(grad, "__wrapped__", None)) is not None:
        grad = inner
    return grad


def in_backward() -> bool:
    """Whether this thread is inside a backward pass: a checkpoint recompute, a tensor hook."""
    return graph_task_id() != -1


sequence_number: Callable[[], int] = _sequence_nr or (lambda: -1)
"""Number that the next autograd node of this thread will get; -1 where torch cannot say."""


def next_sequence_number() -> int | None:
    """Number that the next autograd node of this thread will get; None where torch cannot say."""
    return None if _sequence_nr is None else _sequence_nr()


def current_node() -> Any | None:
    """The autograd node whose backward this thread is computing, if any."""
    return None if _current_node is None else _current_node()


def is_in_forward(frame: types.FrameType | None) -> bool:
    """Whether Python runs the forward of a user's `autograd.Function` in there, and not a backward."""
    while frame is not None:
        if frame.f_code is _FUNCTION_CALL:
            return True
        if frame.f_code is _DERIVATIVE_CALL or is_engine(frame.f_code):
            return False
        frame = frame.f_back
    return False


_FUNCTION_CALL: Final = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)


_DERIVATIVE_CALL: Final = getattr(BackwardCFunction.apply, "__code__", None)


def is_engine(code: types.CodeType) -> bool:
    """Whether a frame with this code is the innermost of Python before autograd's engine runs."""
    return code.co_name == "_engine_run_backward"


def register_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    """Call `hook` with the gradient of `tensor` in every backward, for as long as its graph lives.

    The tensor has a `grad_fn`. By the two calls that `Tensor.register_hook` makes, without the handle, which
    is most of its cost.
    """
    register = getattr(tensor.grad_fn, "_register_hook_dict", None)
    if register is None or type(tensor) is not Tensor or tensor._backward_hooks is not None:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return
    tensor._backward_hooks = OrderedDict(((_OWN_HOOK, hook),))
    register(tensor)


_OWN_HOOK: Final = -1
"""Key of our hook among a tensor's; those of torch are counted from 0."""


def left_out_of_pickles(hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Mark a tensor hook as one that `torch.save` drops without warning the user about it."""
    hook.__torch_unserializable__ = True  # type: ignore[attr-defined]
    return hook


def call_after_graph(loss: Tensor, call: Callable[[], None]) -> None:
    """Have the next backward from a tensor call something once its graph has run.

    It comes before all that the backward waits for at its end, which the waiting code has asked for later
    (`DistributedDataParallel`, at its last bucket). Nothing is called where torch has no such queue.
    """
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None or not loss.requires_grad:
        return

    def begin(gradient: Tensor) -> None:
        handle.remove()
        # A compiled backward has no queue.
        with suppressed(AttributeError, RuntimeError):
            engine.queue_callback(call)

    handle: Any = loss.register_hook(begin)  # type: ignore[no-untyped-call]


def has_post_accumulate_hooks(parameter: Tensor) -> bool:
    """Whether a post-accumulate-grad hook (an optimizer in backward, say) sits on the parameter."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))
