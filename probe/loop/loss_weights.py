"""Reads from the graph of a loss whether one of the terms that it is the sum of has the weight 0.

What feeds such a term alone gets gradients of exactly 0, and is meant to: the term is switched on later, or
only logged. Used by the step tracker on the training thread, on the first few backwards. Reads the numbers
that autograd has kept, of the host alone.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from torch import Tensor

from ..compat.torch_nodes import node_name, output_shape, saved_value
from ..guard import let_pass

_MOST_NODES: Final = 64
_SUMS: Final = frozenset({"AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0", "DivBackward0"})
"""Between a loss and its terms, as long as there is but one number."""


def has_zero_weight(losses: object) -> bool:
    """Return whether a term of a loss is multiplied by a 0 that nothing trains.

    Args:
        losses: what backward is called on.
    """
    given = losses if isinstance(losses, list | tuple) else (losses,)
    waiting = deque(loss.grad_fn for loss in given if isinstance(loss, Tensor) and loss.numel() == 1)
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.popleft()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        name = node_name(node)
        if name not in _SUMS or not _is_one_number(node):
            continue
        if name == "MulBackward0" and any(_is_zero(node, side) for side in ("self", "other")):
            return True
        waiting.extend(child for child, _ in node.next_functions)
    return False


def _is_one_number(node: Any) -> bool:
    shape = output_shape(node)
    return shape is not None and all(length == 1 for length in shape)


def _is_zero(node: Any, side: str) -> bool:
    try:
        factor = saved_value(node, side)
    except RuntimeError as error:
        let_pass(error)
        return False
    if not isinstance(factor, Tensor) or factor.numel() != 1 or not factor.is_cpu or factor.requires_grad:
        return False
    return bool(factor == 0)
