"""What the probe asks of torch.distributed, private symbols included; each with what happens without it.

Nothing here talks to other ranks, or waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from ..guard import suppressed
from .torch_modules import compiled_original

COLLECTIVES: Final = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
"""Namespaces of the operations that talk to other ranks."""

SYNCHRONISES: Final = "require_backward_grad_sync"
"""Attribute of DistributedDataParallel: whether the backward of its next forward averages gradients."""

_world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def available() -> dict[str, bool]:
    """Return which private symbols this torch has; see `availability.available`."""
    return {
        "torch.nn.parallel.DistributedDataParallel._active_ddp_module": hasattr(
            nn.parallel.DistributedDataParallel, "_active_ddp_module"
        ),
        "torch.distributed.distributed_c10d._get_default_store": hasattr(
            sys.modules.get("torch.distributed.distributed_c10d"), "_get_default_store"
        ),
        "torch.distributed.distributed_c10d._world": _world is not None,
        "torch.distributed.ProcessGroup._get_sequence_number_for_group": hasattr(
            getattr(torch.distributed, "ProcessGroup", None), "_get_sequence_number_for_group"
        ),
    }


def is_distributed() -> bool:
    """Whether this process has joined others."""
    if _world is not None:
        return _world.default_pg is not None
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def collective_timeouts_s() -> list[float]:
    """Seconds after which the collectives of each group fail; none where torch does not say."""
    found = []
    for group in getattr(_world, "pg_map", None) or {}:
        for device in getattr(group, "_device_types", ()):
            with suppressed(AttributeError, RuntimeError):
                found.append(group._get_backend(device).options._timeout.total_seconds())
    return found


def collectives_begun(group: Any = None) -> int | None:
    """How many collectives a process group has begun on this rank; None where its backend does not count.

    Args:
        group: which; None: that of all ranks.
    """
    group = group or getattr(_world, "default_pg", None)
    with suppressed(AttributeError, RuntimeError, TypeError):
        return int(group._get_sequence_number_for_group())
    return None


def own_name(group: Any) -> str:
    """The name of a process group; empty for that of all ranks."""
    if group is None or group is getattr(_world, "default_pg", None):
        return ""
    name = getattr(group, "group_desc", "")
    name = name if name not in ("", "undefined") else getattr(group, "group_name", "")
    return str(name).replace("`", "")[:80]


def data_parallel_around(module: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """The DistributedDataParallel that a module is, or whose forward calls it just now; None without one."""
    module = compiled_original(module)
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return module
    active = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    return active if isinstance(active, nn.parallel.DistributedDataParallel) else None


def synchronises(module: nn.Module) -> bool:
    """Whether a module is a DistributedDataParallel whose next backward averages gradients over the ranks."""
    return isinstance(module, nn.parallel.DistributedDataParallel) and bool(getattr(module, SYNCHRONISES))


def keeps_own_gradients(wrapper: nn.parallel.DistributedDataParallel) -> bool:
    """Whether `p.grad` is this rank's own until the end of the backward: what is averaged are copies.

    The reducer's buckets are copies unless gradients are views of them, or something else than the reducer
    averages (`torch.nn.parallel.DistributedDataParallel`, `torch/csrc/distributed/c10d/reducer.cpp`,
    `mark_variable_ready_dense` and `finalize_backward`).
    """
    return not (
        wrapper.gradient_as_bucket_view
        or getattr(wrapper, "mixed_precision", None) is not None
        or getattr(wrapper, "_use_python_reducer", False)
        or getattr(wrapper, "_delay_all_reduce_params", ())
    )


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds only a part of the tensor: a DTensor that is not replicated on every rank."""
    return _is_dtensor(tensor) and not all(
        placement.is_replicate() for placement in cast(Any, tensor).placements
    )


def _is_dtensor(tensor: Tensor) -> bool:
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def ranks_that_share(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the ranks on which the parts of these tensors lie, sorted; empty where none is sharded."""
    tensors = list(tensors)
    if not any(map(is_sharded, tensors)):
        return ()
    meshes = [cast(Any, one).device_mesh.mesh for one in tensors if _is_dtensor(one)]
    return tuple(sorted({rank for mesh in meshes for rank in mesh.flatten().tolist()}))


def share_of(tensor: Tensor, ranks: int) -> float | None:
    """Return by what this rank's part of a tensor counts in a sum over ranks: each element counts once.

    Args:
        tensor: a DTensor, or one that each of the ranks has the whole of.
        ranks: how many ranks are summed over.

    Returns:
        One over the number of ranks that hold the same part; None where the rank holds only a term of a sum,
        which nothing but a collective can add up.
    """
    if not _is_dtensor(tensor):
        return 1.0 / ranks
    mesh: Any = cast(Any, tensor).device_mesh
    parts = 1
    for dimension, placement in enumerate(cast(Any, tensor).placements):
        if placement.is_partial():
            return None
        if not placement.is_replicate():
            parts *= mesh.size(dimension)
    return parts / ranks


def default_store() -> Any | None:
    """The key-value store through which the ranks of this process's group met; None without a group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    get_store = getattr(sys.modules["torch.distributed.distributed_c10d"], "_get_default_store", None)
    return None if get_store is None else get_store()
