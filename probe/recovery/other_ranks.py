"""Whether this process trains together with others, which would not know what it decides by itself."""

from __future__ import annotations

import torch

from .. import torch_private


def has_other_ranks() -> bool:
    """Whether this process's group has more than one rank."""
    return torch_private.is_distributed() and torch.distributed.get_world_size() > 1
