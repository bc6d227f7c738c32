"""Every private torch symbol that the probe uses, each with what happens where it is absent.

The first file to look at when a torch version breaks something, before `torch_dynamo.py` (torch.compile),
`torch_ranks.py` (torch.distributed) and `kernels/tensor_reader.py` (memory of tensors). All functions are
cheap enough for the training thread, and none of them synchronises with a device.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef

P = ParamSpec("P")
R = TypeVar("R")


def available() -> dict[str, bool]:
    """Return which private symbols this torch has: what `dashboard doctor` shows and the tests check."""
    return {
        "torch._C._autograd._get_sequence_nr": _sequence_nr is not None,
        "torch._C._push_on_torch_dispatch_stack": None not in (_push_mode, _pop_mode, _mode_at, _mode_count),
        "torch._C._current_autograd_node": _current_node is not None,
        "torch._C._current_graph_task_id": _graph_task_id is not None,
        "torch._C._functorch.is_functorch_wrapped_tensor": _is_functorch_wrapped is not None,
        "torch._C._nn.flatten_dense_tensors": _flatten is not None,
        "torch.Tensor.__dlpack_c_exchange_api__": hasattr(Tensor, "__dlpack_c_exchange_api__"),
        "torch.autograd.Variable._execution_engine": hasattr(torch.autograd.Variable, "_execution_engine"),
        "torch.nn.Module._call_impl": hasattr(nn.Module, "_call_impl"),
        "torch.utils._python_dispatch.TorchDispatchMode": DispatchMode is not object,
        "torch.utils._pytree": pytree() is not None,
    }


NEEDED_FOR_REPLAY: Final = frozenset(
    {
        "torch._C._autograd._get_sequence_nr",
        "torch._C._current_autograd_node",
        "torch._C._current_graph_task_id",
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree",
    }
)
"""Of the names of `available`: without one of these no step is replayed."""


def symbol(*path: str) -> Any:
    """Walk attributes from `torch._C`; None where one is missing."""
    value: Any = torch._C
    for name in path:
        value = getattr(value, name, None)
    return value


_sequence_nr: Callable[[], int] | None = symbol("_autograd", "_get_sequence_nr")
_current_node: Callable[[], Any] | None = symbol("_current_autograd_node")
_graph_task_id: Callable[[], int] | None = symbol("_current_graph_task_id")
_is_functorch_wrapped: Callable[[Tensor], bool] | None = symbol("_functorch", "is_functorch_wrapped_tensor")

DispatchMode: type[Any] = getattr(
    sys.modules.get("torch.utils._python_dispatch"), "TorchDispatchMode", object
)
"""Sees every op below autograd; where torch has none, every replay declines (`available` says so)."""
_flatten: Callable[[list[Tensor]], Tensor] | None = symbol("_nn", "flatten_dense_tensors")


graph_task_id: Callable[[], int] = _graph_task_id or (lambda: -1)
"""Id of the backward pass that this thread is inside, -1 outside of one (and where torch cannot say)."""


is_jit_tracing: Callable[[], bool] = symbol("_is_tracing") or (lambda: False)
"""Whether `torch.jit.trace` is recording what this thread does."""


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


def node_sequence_number(node: Any) -> int | None:
    """Sequence number of an autograd node; None for nodes without one, such as `AccumulateGrad`."""
    number = getattr(node, "_sequence_nr", None)
    value: int | None = None if number is None else number()
    # AccumulateGrad carries 2**64 - 1, which stands for "none".
    return None if value is None or value >= 2**63 else value


def is_custom_node(node: Any) -> bool:
    """Whether an autograd node is that of a user's `autograd.Function`."""
    return isinstance(node, BackwardCFunction)


def runs_own_python(node: Any) -> bool:
    """Whether a node's derivative is that of a user's `autograd.Function`, and not the carrier of hooks."""
    return is_custom_node(node) and type(node).__name__ != "BackwardHookFunctionBackward"


def forward_code(node: Any) -> types.CodeType | None:
    """The code of the forward of a user's `autograd.Function`, by its node; None where torch cannot say."""
    if not is_custom_node(node):
        return None
    forward = getattr(getattr(type(node), "_forward_cls", None), "forward", None)
    return getattr(forward, "__code__", None)


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


def node_name(node: Any) -> str:
    """Name of an autograd node such as ``SqrtBackward0``; a user's Function gives its class name."""
    name: str = node.name() if callable(getattr(node, "name", None)) else type(node).__name__
    return name.rsplit("::", 1)[-1]


is_functorch_wrapped: Callable[[Tensor], bool] = _is_functorch_wrapped or (lambda _: False)
"""Whether a tensor belongs to a `torch.func` transform (vmap, grad); False where torch cannot say."""


_transform_level: Callable[[], int | None] | None = symbol("_functorch", "maybe_current_level")


transform_level: Callable[[], int | None] = _transform_level or (lambda: None)
"""Level of the innermost `torch.func` transform that runs; None outside of all."""


def in_transform() -> bool:
    """Whether a `torch.func` transform runs: what ops return then, ours included, has no memory to read."""
    return _transform_level is not None and _transform_level() is not None


def version_of(tensor: Tensor) -> int | None:
    """In-place version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def storage_reference(tensor: Tensor) -> object:
    """Return what equals that of every tensor in the same memory, even once that is freed; keeps none."""
    reference: object = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    return reference


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


def storage_bytes(tensor: Tensor) -> int:
    """Size of the tensor's storage, that of a sparse tensor's values; 0 where it has none."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return 0


def is_view(tensor: Tensor) -> bool:
    """Whether autograd tracks the tensor as a view of another."""
    return tensor._is_view()


def is_made_up_zero(tensor: Tensor) -> bool:
    """Whether a tensor is a ZeroTensor, which has a shape and no memory; they occur inside a backward."""
    return bool(tensor._is_zerotensor())


_has_cuda: Final = hasattr(torch._C, "_cuda_getDeviceCount")


def cuda_is_initialised() -> bool:
    """Whether this process uses CUDA; asking does not initialise it."""
    return _has_cuda and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


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


def is_plain_strided(tensor: Tensor) -> bool:
    """Whether a tensor has all its elements in memory as they are: not sparse, meta, quantised or lazy."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return False
    return not (tensor.is_conj() or tensor.is_neg())


def saved_tensors(node: Any) -> Iterator[Tensor]:
    """Yield what an autograd node keeps for its backward, without unpacking anything.

    What somebody's saved-tensor hooks took away (a checkpoint, say) is left out: unpacking could compute it
    anew. Nothing where torch cannot say.
    """
    if is_custom_node(node):
        names: tuple[str, ...] = ("_raw_saved_tensors",)
    else:
        names = _saved_names.get(type(node), ())
        if type(node) not in _saved_names:
            names = tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
            _saved_names[type(node)] = names
    for name in names:
        saved = getattr(node, name)
        for one in saved if isinstance(saved, tuple | list) else (saved,):
            if getattr(one, "unpack_hook", one) is None and isinstance(one.data, Tensor):
                yield one.data


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """What an autograd node keeps under a name such as ``"self"``, not unpacked; None where there is none."""
    saved: Any = getattr(node, f"_raw_saved_{name}", None)
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:
        return None
    return saved.data if isinstance(saved.data, Tensor) else None


_saved_names: dict[type[Any], tuple[str, ...]] = {}
"""Of torch's own nodes, some hundred classes."""


def backward_of(tensor: Tensor) -> tuple[Any, int] | None:
    """Return the autograd node that made a tensor, and its sequence number; None for a leaf."""
    node = tensor.grad_fn
    number = None if node is None else node_sequence_number(node)
    return None if number is None else (node, number)


def is_compiled(module: nn.Module) -> bool:
    """Whether what a module contains runs as a graph: `torch.compile`, `Module.compile`, TorchScript."""
    if module.__dict__.get("_compiled_call_impl") is not None or isinstance(module, torch.jit.ScriptModule):
        return True
    return isinstance(module.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module)


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


_push_mode, _pop_mode, _mode_at, _mode_count = (
    symbol(name)
    for name in (
        "_push_on_torch_dispatch_stack",
        "_pop_torch_dispatch_stack",
        "_get_dispatch_stack_at",
        "_len_torch_dispatch_stack",
    )
)


def push_mode(mode: Any) -> bool:
    """Have this thread's operations seen by a dispatch mode from now on; False where others see them already.

    Without the flags that entering one sets for all threads, by which compiled functions would run eagerly.
    """
    if None in (_push_mode, _pop_mode, _mode_at, _mode_count) or _mode_count():
        return False
    _push_mode(mode)
    return True


def remove_mode(mode: Any) -> bool:
    """Take a mode off this thread's stack, wherever it stands there; False where it does not."""
    if None in (_push_mode, _mode_count) or all(_mode_at(i) is not mode for i in range(_mode_count())):
        return False
    above = []
    while (top := _pop_mode(None)) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return True


def scale_of(scaler: Any) -> Tensor | None:
    """Return the tensor in which a GradScaler keeps its scale; None before its first use."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, Tensor) else None


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


def call_after_graph(loss: Tensor, call: Callable[[], None]) -> None:
    """Have the next backward from a tensor call something once its graph has run.

    It comes before all that the backward waits for at its end, which whoever waits has asked for later
    (`DistributedDataParallel`, at its last bucket). Nothing is called where torch has no such queue.
    """
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None or not loss.requires_grad:
        return

    def begin(gradient: Tensor) -> None:
        handle.remove()
        # A compiled backward has no queue.
        with suppress(AttributeError, RuntimeError):
            engine.queue_callback(call)

    handle: Any = loss.register_hook(begin)  # type: ignore[no-untyped-call]


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


def loader_iterators() -> type | None:
    """Class of all iterators over DataLoaders, whose `__next__` they share; None where torch has none."""
    found = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
    return found if isinstance(found, type) and "__next__" in vars(found) else None


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
