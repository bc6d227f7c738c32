"""Reads from the graph of a loss whether predictions and targets were broadcast against each other.

A column of n predictions minus a row of n targets is an n by n table of differences: training goes on, and
learns the mean of the targets. Used by the step tracker on the training thread, on the first few backwards.
Reads shapes only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterator
from typing import Any, Final

from torch import Tensor

from ..compat.torch_nodes import node_name, output_shape, saved_operands
from ..guard import let_pass

Shape = tuple[int, ...]
_MOST_NODES: Final = 32
_REDUCING: Final = frozenset(
    f"{name}Backward{number}"
    for name in ("Mean", "Sum", "Div", "Mul", "Pow", "Abs", "Sqrt", "Neg", "Add", "Log", "Softplus")
    for number in range(3)
) | {"MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "SubBackward0"}
"""Between a scalar and the element by element comparison that it sums up."""
_MEETING: Final = frozenset({"SubBackward0", "MulBackward0", "DivBackward0", "ExpandBackward0"})
"""Where predictions and targets meet; the losses of torch expand both."""
_ON_PURPOSE: Final = frozenset({"UnsqueezeBackward0", "ViewBackward0", "ReshapeAliasBackward0"})
"""Makers of a column that is meant to be compared with a row: a loss over pairs."""


def pairs_in_loss(losses: object, sizes: Collection[int]) -> tuple[Shape, Shape] | None:
    """Return the shapes of the predictions and of the table that they were broadcast to, if they were.

    Args:
        losses: what backward is called on.
        sizes: sizes of the batches that the model was called with.
    """
    # A comparison of the model's outputs with each other is a loss over pairs.
    for node, children in terms_of(losses, through=_REDUCING):
        name = node_name(node)
        if len(children) == 1 and name in _MEETING:
            (child,) = children
            shapes = shape_of(child), shape_of(node)
            is_meant = len(shapes[0]) > 1 and node_name(child) in _ON_PURPOSE
            if not is_meant and _are_pairs(*shapes, sizes) and _is_row(node, name):
                return shapes
    return None


def terms_of(losses: object, *, through: Container[str]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the last nodes of a loss's graph, each with those that it reads; the loss's own come first.

    Behind nodes of other names, and of those with two operands but sums, nothing is looked at.

    Args:
        losses: what backward is called on.
        through: names of nodes to go on from.
    """
    given = losses if isinstance(losses, list | tuple) else (losses,)
    waiting = deque(loss.grad_fn for loss in given if isinstance(loss, Tensor) and loss.grad_fn is not None)
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        children = list({id(child): child for child, _ in node.next_functions if child is not None}.values())
        yield node, children
        name = node_name(node)
        if name in through and (len(children) == 1 or name.startswith("Add")):
            waiting.extend(children)


def _are_pairs(predictions: Shape, table: Shape, sizes: Collection[int]) -> bool:
    size = table[0] if table else 0
    return size > 1 and size in sizes and table == (size, size) and predictions in ((size, 1), (size,))


def _is_row(node: Any, name: str) -> bool:
    """Whether the other factor of a product, where it is known, is no table itself."""
    if not name.startswith(("Mul", "Div")):
        return True
    try:
        factors = saved_operands(node)
    except RuntimeError as error:
        let_pass(error)
        return False
    known = [factor for factor in factors if isinstance(factor, Tensor)]
    size = shape_of(node)[0]
    return any(factor.numel() == size for factor in known)


def shape_of(node: Any) -> Shape:
    """Return the shape of what a node made; () where torch does not say."""
    return output_shape(node) or ()
