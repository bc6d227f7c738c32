"""What torch has beside the model for a training: a GradScaler's scale, clipping, iterators over batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def scale_of(scaler: Any) -> Tensor | None:
    """Return the tensor in which a GradScaler keeps its scale; None before its first use."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, Tensor) else None


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
