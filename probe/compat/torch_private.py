"""Every private symbol of torch that the probe uses, in one place; they stand by subject in the files beside.

The first place to look at when a torch version breaks something: `available` says what it lacks. Each symbol
has a fallback there. Asked directly are `torch_dynamo.py` (torch.compile), `torch_ranks.py`
(torch.distributed), `torch_foreach.py` (lists of tensors) and `torch_frames.py` (names in stacks).
"""

from __future__ import annotations

from typing import Final

from . import torch_engine, torch_foreach, torch_memory, torch_modes, torch_modules, torch_nodes
from .torch_engine import (
    call_after_graph,
    current_node,
    graph_task_id,
    has_post_accumulate_hooks,
    in_backward,
    is_engine,
    is_in_forward,
    left_out_of_pickles,
    next_sequence_number,
    register_hook,
    sequence_number,
)
from .torch_lookup import pytree, symbol
from .torch_memory import (
    concatenate,
    cuda_is_initialised,
    is_made_up_zero,
    is_plain_strided,
    is_view,
    storage_bytes,
    storage_key,
    storage_reference,
    version_of,
)
from .torch_modes import (
    DispatchMode,
    in_transform,
    is_functorch_wrapped,
    is_jit_tracing,
    own_operations,
    transform_level,
)
from .torch_modules import compiled_original, is_compiled, module_calls_wrapped
from .torch_nodes import (
    backward_of,
    forward_code,
    is_custom_node,
    leaves_of,
    node_name,
    node_sequence_number,
    runs_own_python,
    saved_tensor,
    saved_tensors,
)
from .torch_training import clip_functions, loader_iterators, scale_of

__all__ = [
    "DispatchMode",
    "NEEDED_FOR_REPLAY",
    "available",
    "available_to_measure",
    "backward_of",
    "call_after_graph",
    "clip_functions",
    "compiled_original",
    "concatenate",
    "cuda_is_initialised",
    "current_node",
    "forward_code",
    "graph_task_id",
    "has_post_accumulate_hooks",
    "in_backward",
    "in_transform",
    "is_compiled",
    "is_custom_node",
    "is_engine",
    "is_functorch_wrapped",
    "is_in_forward",
    "is_jit_tracing",
    "is_made_up_zero",
    "is_plain_strided",
    "is_view",
    "leaves_of",
    "left_out_of_pickles",
    "loader_iterators",
    "module_calls_wrapped",
    "next_sequence_number",
    "node_name",
    "node_sequence_number",
    "own_operations",
    "pytree",
    "register_hook",
    "runs_own_python",
    "saved_tensor",
    "saved_tensors",
    "scale_of",
    "sequence_number",
    "storage_bytes",
    "storage_key",
    "storage_reference",
    "symbol",
    "transform_level",
    "version_of",
]


def available() -> dict[str, bool]:
    """Return which private symbols this torch has: what `dashboard doctor` shows and the tests check."""
    return {
        **torch_engine.available(),
        **torch_memory.available(),
        **torch_modes.available(),
        **torch_modules.available(),
        "torch.utils._pytree": pytree() is not None,
    }


def available_to_measure() -> dict[str, bool]:
    """Like `available`, of what no replay needs: functions over lists of tensors, attributes of nodes."""
    return {**torch_foreach.available(), **torch_nodes.available()}


NEEDED_FOR_REPLAY: Final = frozenset(
    {
        "torch._C._autograd._get_sequence_nr",
        "torch._C._current_autograd_node",
        "torch._C._current_graph_task_id",
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "torch.Tensor._version",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree",
    }
)
"""Of the names of `available`: without one of these no step is replayed."""
