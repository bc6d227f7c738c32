"""Reads from the graph of a loss whether its function is given what it expects: scores, not probabilities.

`cross_entropy` takes a softmax by itself; of what was squashed into 0..1 before, it stays high whatever is
learnt. Used by the early watch on the training thread, on the first few backwards. Reads names and shapes.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from ..compat.torch_nodes import node_name, saved_value
from ..detectors.loss_inputs import LossInput, Squashed
from .broadcast_losses import shape_of, terms_of

_MOST_NODES: Final = 32
_MOST_VIEWS: Final = 8
REDUCING: Final = frozenset(
    f"{name}Backward{number}" for name in "Mean Sum Div Mul Neg Add".split() for number in range(3)
)
"""Between a scalar and the loss function: weights, scales, sums of several terms."""
_VIEWS: Final = frozenset(
    "View UnsafeView ReshapeAlias Transpose Permute T Squeeze Unsqueeze Clone Alias Slice ToCopy".split()
)
_SQUASHED: Final[dict[str, Squashed]] = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
_RAW: Final = frozenset({"Addmm", "Mm", "Convolution"})
"""What a linear or convolutional layer returns is no logarithm of anything."""
_LIKELIHOODS: Final = frozenset({"NllLoss", "NllLoss2D"})


def misfit_in_loss(losses: object) -> LossInput | None:
    """Return what a loss function is given in place of scores or of log-probabilities, if it is.

    Args:
        losses: what backward is called on.
    """
    # A product of two things that are learnt, an entropy say, is no loss function of scores.
    found = (_misfit(node) for node, _ in terms_of(losses, through=REDUCING))
    return next((misfit for misfit in found if misfit is not None), None)


def _misfit(node: Any) -> LossInput | None:
    """What a loss function's node reads, where that is not what it expects."""
    name = _operation(node)
    if name in _LIKELIHOODS:
        read = _behind_views(node)
        if (made := _operation(read)) == "LogSoftmax":
            return _misfit(read)
        if made in _RAW:
            # A mixture of log-probabilities, by a matrix of their own, is what the loss expects.
            return None if _has_log_softmax(read) else LossInput("nll_loss", None, 0)
        return LossInput("nll_loss", _SQUASHED[made], 0) if made in _SQUASHED else None
    if name in ("LogSoftmax", "BinaryCrossEntropyWithLogits"):
        made = _operation(_behind_views(node))
        if made not in _SQUASHED:
            return None
        if name == "LogSoftmax":
            return LossInput("cross_entropy", _SQUASHED[made], _classes(node))
        return LossInput("binary_cross_entropy_with_logits", _SQUASHED[made], 0)
    return None


def classes_behind(node: Any) -> int:
    """Number of classes of what `cross_entropy` made, by its last node; 0 where that is not what it is."""
    read = _behind_views(node)
    return _classes(read) if _operation(read) == "LogSoftmax" else 0


def _has_log_softmax(node: Any) -> bool:
    """Whether it is computed from log-probabilities, a few operations before."""
    waiting, seen = deque([node]), 0
    while waiting and seen < _MOST_NODES:
        node, seen = waiting.popleft(), seen + 1
        if _operation(node) == "LogSoftmax":
            return True
        waiting.extend(child for child, _ in node.next_functions if child is not None)
    return False


def _behind_views(node: Any) -> Any:
    """The node that made what `node` reads first, past what only shapes or copies it; None without one."""
    for _ in range(_MOST_VIEWS):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None or _operation(node) not in _VIEWS:
            return node
    return None


def _operation(node: Any) -> str:
    """`SoftmaxBackward0` -> `Softmax`; empty for None."""
    return "" if node is None else node_name(node).partition("Backward")[0]


def _classes(node: Any) -> int:
    """Length of the dimension that a softmax is taken over; 0 where torch does not say."""
    shape, dim = shape_of(node), saved_value(node, "dim")
    if not isinstance(dim, int):
        return 0
    dim -= (dim >= 2**63) * 2**64
    return shape[dim] if -len(shape) <= dim < len(shape) else 0
