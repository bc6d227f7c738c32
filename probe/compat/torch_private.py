"""Every private symbol of torch that the probe uses, in one place; they stand by subject in the files beside.

The first place to look at when a torch version breaks something: `available` says what it lacks. Each symbol
has a fallback there. Asked directly are `torch_dynamo.py` (torch.compile), `torch_ranks.py`
(torch.distributed), `torch_foreach.py` (lists of tensors) and `torch_frames.py` (names in stacks).
"""

from __future__ import annotations

from typing import Final

from . import torch_engine, torch_foreach, torch_memory, torch_modes, torch_modules, torch_nodes
from .torch_engine import (
    call_after_graph as call_after_graph,
)
from .torch_engine import (
    current_node as current_node,
)
from .torch_engine import (
    graph_task_id as graph_task_id,
)
from .torch_engine import (
    has_post_accumulate_hooks as has_post_accumulate_hooks,
)
from .torch_engine import (
    in_backward as in_backward,
)
from .torch_engine import (
    is_engine as is_engine,
)
from .torch_engine import (
    is_in_forward as is_in_forward,
)
from .torch_engine import (
    left_out_of_pickles as left_out_of_pickles,
)
from .torch_engine import (
    next_sequence_number as next_sequence_number,
)
from .torch_engine import (
    register_hook as register_hook,
)
from .torch_memory import (
    concatenate as concatenate,
)
from .torch_memory import (
    cuda_is_initialised as cuda_is_initialised,
)
from .torch_memory import (
    is_made_up_zero as is_made_up_zero,
)
from .torch_memory import (
    is_plain_strided as is_plain_strided,
)
from .torch_memory import (
    is_view as is_view,
)
from .torch_memory import (
    storage_bytes as storage_bytes,
)
from .torch_memory import (
    storage_key as storage_key,
)
from .torch_memory import (
    storage_reference as storage_reference,
)
from .torch_memory import (
    version_of as version_of,
)
from .torch_modes import (
    DispatchMode as DispatchMode,
)
from .torch_modes import (
    in_transform as in_transform,
)
from .torch_modes import (
    is_functorch_wrapped as is_functorch_wrapped,
)
from .torch_modes import (
    is_jit_tracing as is_jit_tracing,
)
from .torch_modes import (
    own_operations as own_operations,
)
from .torch_modes import (
    push_mode as push_mode,
)
from .torch_modes import (
    remove_mode as remove_mode,
)
from .torch_modules import (
    compiled_original as compiled_original,
)
from .torch_modules import (
    is_compiled as is_compiled,
)
from .torch_modules import (
    module_calls_wrapped as module_calls_wrapped,
)
from .torch_nodes import (
    backward_of as backward_of,
)
from .torch_nodes import (
    forward_code as forward_code,
)
from .torch_nodes import (
    is_custom_node as is_custom_node,
)
from .torch_nodes import (
    leaves_of as leaves_of,
)
from .torch_nodes import (
    node_name as node_name,
)
from .torch_nodes import (
    node_sequence_number as node_sequence_number,
)
from .torch_nodes import (
    runs_own_python as runs_own_python,
)
from .torch_nodes import (
    saved_tensor as saved_tensor,
)
from .torch_nodes import (
    saved_tensors as saved_tensors,
)
from .torch_symbols import (
    pytree as pytree,
)
from .torch_symbols import (
    symbol as symbol,
)
from .torch_training import (
    clip_functions as clip_functions,
)
from .torch_training import (
    loader_iterators as loader_iterators,
)
from .torch_training import (
    scale_of as scale_of,
)


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
