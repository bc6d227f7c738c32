"""Whether this process trains together with others, which would not know what it decides by itself."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from . import torch_ranks

_TALKING: Final = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})
"""Classes of modules whose forward has collectives. By name: not all of them are loaded everywhere."""


def has_other_ranks() -> bool:
    """Whether this process's group has more than one rank."""
    return torch_ranks.is_distributed() and torch.distributed.get_world_size() > 1


def talks_to_other_ranks(model: nn.Module) -> bool:
    """Whether a forward of the model waits for other ranks, in a wrapper or for parts of its parameters."""
    if not has_other_ranks():
        return False
    if any(kind.__name__ in _TALKING for module in model.modules() for kind in type(module).__mro__):
        return True
    return any(map(torch_ranks.is_sharded, model.parameters()))
