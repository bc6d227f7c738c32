"""Says which gradient a gradient is: the label that every published value carries. Pure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch.optim.optimizer import Optimizer

Stage: TypeAlias = Literal["micro", "local", "reduced", "scaled", "unscaled", "clipped", "shard"]


def gradient_stage(
    *, optimizer: Optimizer | None, was_scaled: bool, is_distributed: bool, is_sharded: bool = False
) -> Stage:
    """Name the stage of gradients read before clipping and before the update.

    Args:
        optimizer: the one about to step; None when read before clipping.
        was_scaled: whether a GradScaler scaled this step's loss.
        is_distributed: whether DistributedDataParallel has averaged them over the ranks.
        is_sharded: whether this rank has only its own part of them, which says more than that it was scaled.
    """
    if is_sharded:
        return "shard"
    if was_scaled:
        # A fused optimizer unscales inside its own kernel: `grad_scale` is set while p.grad is still scaled.
        if getattr(optimizer, "grad_scale", None) is not None:
            return "scaled"
        return "unscaled"
    return "reduced" if is_distributed else "local"
