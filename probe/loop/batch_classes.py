"""Reads from the graph of a classifier's loss whether its batch has examples of one class alone.

So it is where a data set that is sorted by class is not shuffled. Used by the early watch on the training
thread, on the first few backwards. Reads targets on the host alone: elsewhere it would have to wait for them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ..compat.torch_nodes import node_name, saved_tensor
from .broadcast_losses import terms_of
from .misfit_losses import REDUCING

_CLASSIFYING: Final = frozenset(
    {"NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyWithLogitsBackward0"}
)
_FEWEST: Final = 4
"""Of fewer examples nothing is said: they may be alike by chance."""


def has_one_class(losses: object) -> bool | None:
    """Return whether all targets of a batch are the same; None where that is not known.

    Args:
        losses: what backward is called on.
    """
    for node, _ in terms_of(losses, through=REDUCING):
        if node_name(node) in _CLASSIFYING:
            target = saved_tensor(node, "target")
            return None if target is None else _is_one_value(target)
    return None


def _is_one_value(target: Tensor) -> bool | None:
    if type(target) is not Tensor or not target.is_cpu or target.numel() < _FEWEST:
        return None
    with torch.no_grad():
        return bool((target == target.reshape(-1)[:1]).all())
