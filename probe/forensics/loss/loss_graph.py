"""The autograd nodes between the root's outputs and the loss: which there are, and what they send back.

Reads names alone from the graph, and keeps no node. Called by the capture before a backward, on the training
thread; `loss_origin.py` draws conclusions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor

from ...compat import torch_nodes
from .loss_gradients import LossGradients
from .loss_ops import CALM, ORDINARY, operation

MAX_NODES: Final = 256
_SQUARES: Final = (1.0, 2.0)
"""Exponents with a derivative that is finite where the power is."""


class LossNode(NamedTuple):
    """One autograd node between outputs and loss."""

    name: str
    """Such as ``LogBackward0``."""
    is_calm: bool
    """Whether it is one of `loss_ops.CALM`."""
    is_ordinary: bool
    """Whether it is one of `loss_ops.ORDINARY`."""


class LossGraph(NamedTuple):
    """The nodes between one forward and a loss."""

    nodes: tuple[LossNode, ...] = ()
    """Oldest first."""
    is_closed: bool = False
    """Whether these are all, and start from the forward's outputs alone: a module may leave a part of the
    loss on an attribute, say."""
    gradients: LossGradients | None = None
    """What those that are not ordinary send back in the backward that follows."""


def read_loss_graph(
    losses: Iterable[Tensor], *, boundary: int | None, outputs: Container[int] = ()
) -> LossGraph:
    """Return the nodes made since `boundary` that lead to `losses`. No synchronisation.

    Args:
        losses: what backward is called on.
        boundary: the number of the first autograd node after the forward; None gives nothing.
        outputs: the numbers of the nodes that made the forward's outputs.
    """
    if boundary is None:
        return LossGraph()
    is_closed = True
    pending: list[Any] = [loss.grad_fn for loss in losses]
    seen: set[Any] = set()
    nodes: list[tuple[int, LossNode]] = []
    watched: list[tuple[str, Any]] = []
    while pending and len(nodes) < MAX_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = torch_nodes.node_sequence_number(node)
        if number is None or number < boundary:
            is_closed = is_closed and number is not None and number in outputs
            continue
        described = _known.get(type(node)) or _describe(node)
        nodes.append((number, described))
        if not (described.is_ordinary or torch_nodes.saved_exponent(node) in _SQUARES):
            watched.append((described.name, node))
        pending += [child for child, _ in node.next_functions]
    nodes.sort()
    gradients = LossGradients.watch(watched) if watched else None
    return LossGraph(tuple([node for _, node in nodes]), is_closed and not pending, gradients)


def is_made_of(loss: Tensor, nodes: Sequence[LossNode], *, is_part_allowed: bool = False) -> bool:
    """Whether the newest nodes that lead to a loss, made again, have the names of the step's own.

    A trainer may have divided it once more, and scaled it, before it called backward on it.

    Args:
        loss: made again.
        nodes: of the step's own.
        is_part_allowed: whether it does where more nodes lead to it than are known, as these do.
    """
    if not nodes:
        return False
    pending, seen = [loss.grad_fn], set[Any]()
    numbered: list[tuple[int, str]] = []
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (number := torch_nodes.node_sequence_number(node)) is not None:
            numbered.append((number, torch_nodes.node_name(node)))
        pending += [child for child, _ in node.next_functions]
    numbered.sort()
    made, wanted = [name for _, name in numbered], [node.name for node in nodes]
    if len(nodes) >= MAX_NODES:
        # Some of them, and not in a row.
        return is_part_allowed and not Counter(wanted) - Counter(made)
    for _ in range(_MOST_SCALES):
        if made[-len(wanted) :] == wanted:
            return True
        if wanted[-1:] not in _SCALES or len(wanted) == 1:
            return False
        wanted.pop()
    return made[-len(wanted) :] == wanted


_MOST_SCALES: Final = 2
_SCALES: Final = (["DivBackward0"], ["MulBackward0"])
_known: dict[type[Any], LossNode] = {}
"""Of torch's own classes of nodes: some hundreds."""


def _describe(node: Any) -> LossNode:
    """Describe a node of a class that is met for the first time."""
    name = torch_nodes.node_name(node)
    op = operation(name)
    described = LossNode(name, op in CALM, op in ORDINARY)
    # Nodes that torch generates no class for, and the user's own, share theirs or come and go.
    if type(node).__name__ == name and not torch_nodes.is_custom_node(node):
        _known[type(node)] = described
    return described
