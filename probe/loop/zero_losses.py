"""Reads from the graph of a loss what may make it exactly 0: a target that does not fit, a mask, a clamp.

Used by the early watch on the training thread, on the first few backwards. Reads names, and numbers that
autograd has kept on the host.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from torch import Tensor

from ..compat.torch_nodes import saved_tensor, saved_value
from ..guard import let_pass
from .guessed_losses import name_of

_MOST_NODES: Final = 24
_MOST_ELEMENTS: Final = 65_536
_FLOORS: Final = frozenset({"Relu", "Clamp", "ClampMin", "Threshold"})


def cause_of_zero(losses: object) -> str | None:
    """Say why a loss may be 0 for every sample, as a sentence; None where nothing in its graph shows it.

    Args:
        losses: what backward is called on.
    """
    given = losses if isinstance(losses, list | tuple) else (losses,)
    waiting = deque((loss.grad_fn, True) for loss in given if isinstance(loss, Tensor))
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_NODES:
        node, is_outermost = waiting.popleft()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        name = name_of(node)
        try:
            cause = _cause(node, name, is_outermost=is_outermost)
        except RuntimeError as error:  # a backward has freed what the node kept
            let_pass(error)
            return None
        if cause is not None:
            return cause
        # A ReLU below a first operation that is no mere reduction is the model's, as a rule.
        is_outermost = is_outermost and name in ("Mean", "Sum", "Div", "View", "Squeeze")
        waiting.extend((child, is_outermost) for child, _ in node.next_functions)
    return None


def _cause(node: Any, name: str, *, is_outermost: bool) -> str | None:
    if name == "CtcLoss" and saved_value(node, "zero_infinity"):
        return _of_ctc(node)
    if name in ("NllLoss", "NllLoss2D"):
        return _of_targets(node)
    if name == "Mul" and any(_is_all_zero(node, side) for side in ("self", "other")):
        return "It is multiplied by a tensor that is 0 everywhere: a mask or a weight."
    if name in _FLOORS and is_outermost:
        return "The loss ends in a `relu` or `clamp`, which makes 0 of everything below its limit."
    return None


def _of_ctc(node: Any) -> str | None:
    inputs, targets = (saved_value(node, name, ()) for name in ("input_lengths", "target_lengths"))
    if not (isinstance(inputs, tuple) and isinstance(targets, tuple) and inputs and targets):
        return "`_ctc_loss` with zero_infinity=True makes 0 of the loss of each target that does not fit."
    if all(target > length for length, target in zip(inputs, targets, strict=True)):
        return (
            "`_ctc_loss` with zero_infinity=True makes 0 of an infinite loss: every target is longer than "
            f"its input (targets of {min(targets)} or more, inputs of at most {max(inputs)} frames)."
        )
    return None


def _of_targets(node: Any) -> str | None:
    target, ignored = saved_tensor(node, "target"), saved_value(node, "ignore_index")
    if target is None or not target.is_cpu or not 0 < target.numel() <= _MOST_ELEMENTS:
        return None
    if not isinstance(ignored, int):
        return None
    ignored -= 2**64 if ignored >= 2**63 else 0  # kept as an unsigned number
    if not bool((target == ignored).all()):
        return None
    return f"Every target is the ignore_index ({ignored}) of the cross-entropy."


def _is_all_zero(node: Any, side: str) -> bool:
    factor = saved_tensor(node, side)
    if factor is None or factor.requires_grad or not factor.is_cpu or factor.is_sparse:
        return False
    return 1 < factor.numel() <= _MOST_ELEMENTS and not bool(factor.any())
