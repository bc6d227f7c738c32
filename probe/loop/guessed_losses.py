"""Reads from a loss's graph what it would be if the model knew nothing: log(classes), the targets' size.

Used by the early watch on the training thread, on the first few backwards. Reads names, shapes and, on the
host, of squares some thousand elements. A loss of several terms or with weights has no such value.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from ..compat.torch_nodes import node_name, saved_tensor, saved_value
from ..detectors.first_loss import Guess
from ..guard import let_pass
from .misfit_losses import classes_behind

MEAN: Final = 1
"""`at::Reduction::Mean`, as a node keeps it ..."""
NONE: Final = 0
"""... and one value for each element, which the script averages."""
_MOST_SCALES: Final = 3
_ELEMENTS: Final = 4096


def guess_of(losses: object) -> Guess | None:
    """Return the loss of a model that knows nothing, of the same function; None where it is not known.

    Args:
        losses: what backward is called on.
    """
    given = losses if isinstance(losses, list | tuple) else (losses,)
    if len(given) != 1 or not isinstance(given[0], Tensor):
        return None
    node: Any = given[0].grad_fn
    is_mean = False
    for _ in range(_MOST_SCALES):
        name = name_of(node)
        if name == "Mean" and not is_mean:
            is_mean = True
        elif not _is_undone(node, name):
            break
        node = node.next_functions[0][0]
    return _guess(node, NONE if is_mean else MEAN)


def name_of(node: Any) -> str:
    """`MeanBackward0` -> `Mean`; empty for None."""
    return "" if node is None else node_name(node).partition("Backward")[0]


def _is_undone(node: Any, name: str) -> bool:
    """Whether it is a factor that is not in the loss of the step: accumulation's divisor, a loss scale."""
    if name not in ("Div", "Mul") or len(node.next_functions) != 2 or node.next_functions[1][0] is not None:
        return False
    try:
        other = saved_value(node, "other")
    except RuntimeError as error:
        let_pass(error)
        return False
    if name == "Mul":
        # A number of the script's is kept as a tensor of double precision or of integers.
        return isinstance(other, Tensor) and other.numel() == 1 and other.dtype == torch.float32
    return other is None or isinstance(other, Tensor | int | float)


def is_unweighted(node: Any, reduction: int) -> bool:
    """Whether a loss function's node reduces in this way, and has no weights of classes or elements."""
    try:
        return saved_value(node, "reduction") == reduction and saved_value(node, "weight") is None
    except RuntimeError as error:
        let_pass(error)
        return False


def _guess(node: Any, reduction: int) -> Guess | None:
    name = name_of(node)
    if node is None or not is_unweighted(node, reduction):
        return None
    if name in ("NllLoss", "NllLoss2D"):
        classes = classes_behind(node)
        return (
            None if classes < 2 else Guess("cross_entropy", math.log(classes), f"{classes} classes are alike")
        )
    if name == "BinaryCrossEntropyWithLogits":
        return Guess("binary_cross_entropy_with_logits", math.log(2.0), "both answers are alike")
    return _guess_of_squares(node) if name == "MseLoss" else None


def _guess_of_squares(node: Any) -> Guess | None:
    output, target = saved_tensor(node, "self"), saved_tensor(node, "target")
    if output is None or target is None or not (output.is_cpu and target.is_cpu):
        return None
    size = _mean_square(target)
    return Guess("mse_loss", size, "it returns 0", math.sqrt(_mean_square(output)))


def _mean_square(tensor: Tensor) -> float:
    # What is evenly spread; a reshape of all of it could copy it.
    with torch.no_grad():
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:64].reshape(-1)
        few = flat[:: max(flat.numel() // _ELEMENTS, 1)].double()
        return float(few.square().mean()) if few.numel() else math.nan
