"""Every private torch symbol that the probe uses, each with what happens where it is absent.

The one file to look at when a torch version breaks something. Imported by the hooks and by the forensics;
all functions are cheap enough for the training thread and none of them synchronises with a device.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def available() -> dict[str, bool]:
    """Return which private symbols this torch has: what `dashboard doctor` shows and the tests check."""
    return {
        "torch._C._autograd._get_sequence_nr": _sequence_nr is not None,
        "torch._C._current_autograd_node": _current_node is not None,
        "torch._C._current_graph_task_id": _graph_task_id is not None,
        "torch._C._functorch.is_functorch_wrapped_tensor": _is_functorch_wrapped is not None,
        "torch._C._nn.flatten_dense_tensors": _flatten is not None,
        "torch.nn.Module._call_impl": hasattr(nn.Module, "_call_impl"),
        "torch.utils._python_dispatch.TorchDispatchMode": DispatchMode is not object,
        "torch.utils._pytree": pytree() is not None,
    }


def _symbol(*path: str) -> Any:
    """Walk attributes from `torch._C`; None where one is missing."""
    value: Any = torch._C
    for name in path:
        value = getattr(value, name, None)
    return value


_sequence_nr: Callable[[], int] | None = _symbol("_autograd", "_get_sequence_nr")
_current_node: Callable[[], Any] | None = _symbol("_current_autograd_node")
_graph_task_id: Callable[[], int] | None = _symbol("_current_graph_task_id")
_is_functorch_wrapped: Callable[[Tensor], bool] | None = _symbol("_functorch", "is_functorch_wrapped_tensor")

DispatchMode: type[Any] = getattr(
    sys.modules.get("torch.utils._python_dispatch"), "TorchDispatchMode", object
)
"""Sees every op below autograd; where torch has none, every replay declines (`available` says so)."""
_flatten: Callable[[list[Tensor]], Tensor] | None = _symbol("_nn", "flatten_dense_tensors")


def graph_task_id() -> int:
    """Id of the backward pass that this thread is inside, -1 outside of one (and where torch cannot say)."""
    return -1 if _graph_task_id is None else _graph_task_id()


def in_backward() -> bool:
    """Whether this thread is inside a backward pass: a checkpoint recompute, a tensor hook."""
    return graph_task_id() != -1


def next_sequence_number() -> int | None:
    """Number that the next autograd node of this thread will get; None where torch cannot say."""
    return None if _sequence_nr is None else _sequence_nr()


def current_node() -> Any | None:
    """The autograd node whose backward this thread is computing, if any."""
    return None if _current_node is None else _current_node()


def node_sequence_number(node: Any) -> int | None:
    """Sequence number of an autograd node; None for nodes without one, such as `AccumulateGrad`."""
    number = getattr(node, "_sequence_nr", None)
    value: int | None = None if number is None else number()
    # AccumulateGrad carries 2**64 - 1, which stands for "none".
    return None if value is None or value >= 2**63 else value


def node_name(node: Any) -> str:
    """Name of an autograd node such as ``SqrtBackward0``; a user's Function gives its class name."""
    name: str = node.name() if callable(getattr(node, "name", None)) else type(node).__name__
    return name.rsplit("::", 1)[-1]


def is_functorch_wrapped(tensor: Tensor) -> bool:
    """Whether `tensor` belongs to a `torch.func` transform (vmap, grad); False where torch cannot say."""
    return False if _is_functorch_wrapped is None else _is_functorch_wrapped(tensor)


def version_of(tensor: Tensor) -> int | None:
    """In-place version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def storage_key(tensor: Tensor) -> int:
    """Address of the tensor's storage, shared by all its views; 0 where it has none (empty, meta).

    A sparse tensor's is that of its values.
    """
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def is_view(tensor: Tensor) -> bool:
    """Whether autograd tracks the tensor as a view of another."""
    return tensor._is_view()


def cuda_is_initialised() -> bool:
    """Whether this process uses CUDA; asking does not initialise it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def register_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    """Call `hook` with the gradient of `tensor` in every backward, for as long as its graph lives."""
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def left_out_of_pickles(hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Mark a tensor hook as one that `torch.save` drops without warning the user about it."""
    hook.__torch_unserializable__ = True  # type: ignore[attr-defined]
    return hook


def leaves_of(losses: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the leaf tensors that the backward of `losses` reaches; the graph may have been freed already."""
    waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def has_post_accumulate_hooks(parameter: Tensor) -> bool:
    """Whether a post-accumulate-grad hook (an optimizer in backward, say) sits on the parameter."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def pytree() -> types.ModuleType | None:
    """`torch.utils._pytree`, which knows the containers users registered; None limits captures to tensors."""
    return sys.modules.get("torch.utils._pytree")


def compiled_original(module: nn.Module) -> nn.Module:
    """The module inside a `torch.compile(module)` wrapper, else the module itself."""
    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else module


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Copy dense tensors into one new 1-D tensor; torch's own way halves the time of 2,000 small ones."""
    if _flatten is not None:
        flat = _flatten(list(tensors))
        # A single contiguous tensor may come back as a view of itself.
        return flat.clone() if len(tensors) == 1 else flat
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def clip_functions() -> Sequence[tuple[Any, str]]:
    """(owner, name) of every place where torch's gradient clipping functions are looked up by name."""
    owners = (nn.utils, nn.utils.clip_grad)
    # The underscored one is what a `clip_grad_norm_` imported before the probe came still looks up.
    names = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
    return [(owner, name) for owner in owners for name in names if hasattr(owner, name)]


@contextmanager
def module_calls_wrapped(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace what every `module(...)` runs, on the class and not on any instance, until the block ends.

    Args:
        wrap: takes the original `(module, *args, **kwargs)` function and returns its stand-in.
    """
    # `__call__` goes through `_call_impl`, also where a wrapper of `__call__` kept torch's own function.
    name = "_call_impl" if hasattr(nn.Module, "_call_impl") else "__call__"
    original = getattr(nn.Module, name)
    setattr(nn.Module, name, wrap(original))
    try:
        yield
    finally:
        setattr(nn.Module, name, original)


@contextmanager
def compilation_off() -> Iterator[None]:
    """Run compiled functions eagerly inside the block; nothing to do where dynamo was never loaded."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
