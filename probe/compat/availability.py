"""Which private symbols of torch are there: the first place to look at when a torch version breaks something.

The symbols stand by subject in the files beside, each with its fallback. Asked directly are `torch_dynamo.py`
(torch.compile), `torch_ranks.py` (torch.distributed), `torch_foreach.py` (lists of tensors) and
`torch_frames.py` (names in stacks).
"""

from __future__ import annotations

from typing import Final

from . import torch_engine, torch_foreach, torch_memory, torch_modes, torch_modules, torch_nodes
from .torch_lookup import pytree


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
