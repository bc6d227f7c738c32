"""Reads from the graph of a loss which function of torch made it, of those that have no negative values.

Used by the early watch on the training thread, on the first few backwards, and where a loss is negative all
the same. Reads names, and numbers that autograd has kept on the host.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from ..compat.torch_nodes import node_name, saved_value
from ..guard import let_pass
from .handwritten_losses import is_binary_cross_entropy, is_divergence

_FUNCTIONS: Final = {
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "BinaryCrossEntropy": "binary_cross_entropy",
}
"""Never negative with targets between 0 and 1."""
BY_HAND: Final = "binary cross-entropy (written by hand)"
_COMPOSED: Final = frozenset({"Neg", "Sub", "Add", "Mul", "Div"})
"""Names of the last node of a loss that is written by hand."""
_NEVER_NEGATIVE: Final = frozenset(
    "MseLoss SmoothL1Loss HuberLoss Abs Exp Sigmoid Softplus LinalgVectorNorm Norm Sqrt CtcLoss".split()
)
_MEANS: Final = frozenset({"Mean", "Sum", "View", "Reshape", "Squeeze", "ToCopy", "Clone"})
_MOST_DEPTH: Final = 12


def bounded_function(losses: object) -> str | None:
    """Return the function, or None where a term is of another one, or has a weight that is not known.

    Args:
        losses: what backward is called on.
    """
    given = losses if isinstance(losses, list | tuple) else (losses,)
    nodes = [loss.grad_fn if isinstance(loss, Tensor) else None for loss in given]
    found = [_function_of(node, _MOST_DEPTH) for node in nodes]
    if not found or None in found:
        return None
    # "" stands for terms such as squares, which nothing can make negative.
    return next((name for name in found if name), "")


def _function_of(node: Any, depth: int) -> str | None:
    if node is None or not depth:
        return None
    whole = node_name(node)
    name = whole.partition("Backward")[0]
    if is_divergence(node):
        return "kl_div"
    if name in _COMPOSED and is_binary_cross_entropy(node):
        return BY_HAND
    if name in _FUNCTIONS:
        return _FUNCTIONS[name] if _has_no_weight(node) else None
    if name in _NEVER_NEGATIVE:
        return ""
    if name == "Pow":
        exponent = saved_value(node, "exponent")
        return "" if exponent in (2, 4) else None
    if name in ("NllLoss", "NllLoss2D"):
        is_cross_entropy = _made_by(node, "LogSoftmax") and _has_no_weight(node)
        return "" if is_cross_entropy else None
    children = [child for child, _ in node.next_functions]
    if name == "Add" and len(children) == 2 and None not in children:
        terms = [_function_of(child, depth - 1) for child in children]
        return None if None in terms else (terms[0] or terms[1])
    if name in ("Mul", "Div"):
        if whole == "DivBackward1" and _is_cross_entropy_of_probabilities(children[0]):
            return "cross_entropy"
        return _function_of(children[0], depth - 1) if _is_positive(node) else None
    return _function_of(children[0], depth - 1) if name in _MEANS else None


def _is_cross_entropy_of_probabilities(node: Any) -> bool:
    """Whether it is what torch's `cross_entropy` computes of targets that are no classes: -sum(t log p)."""
    for name in ("Neg", "Sum", "Mul", "LogSoftmax"):
        if node is None or node_name(node).partition("Backward")[0] != name:
            return False
        node = node.next_functions[0][0] if node.next_functions else None
    return True


def _made_by(node: Any, name: str) -> bool:
    child = node.next_functions[0][0] if node.next_functions else None
    for _ in range(_MOST_DEPTH):
        if child is None or not child.next_functions:
            return False
        made = node_name(child).partition("Backward")[0]
        if made == name:
            return True
        if made not in ("View", "ReshapeAlias", "UnsafeView", "Transpose", "Permute", "Clone", "ToCopy"):
            return False
        child = child.next_functions[0][0]
    return False


def _has_no_weight(node: Any) -> bool:
    """Whether its elements are not weighted one by one: a weight may be negative."""
    try:
        return saved_value(node, "weight") is None
    except RuntimeError as error:
        let_pass(error)
        return False


def _is_positive(node: Any) -> bool:
    """Whether the constant factor or divisor of a node is a positive number of the host."""
    try:
        factor = saved_value(node, "other")
    except RuntimeError as error:
        let_pass(error)
        return False
    if isinstance(factor, Tensor):
        if factor.numel() != 1 or not factor.is_cpu or factor.requires_grad:
            return False
        return bool(factor > 0)
    return isinstance(factor, int | float) and factor > 0
