"""The autograd nodes between the root's outputs and the loss: what can be said of a loss made in the script.

Reads names and small saved numbers from the graph, never a large tensor, and keeps no node. Called by the
capture before a backward, on the training thread; `loss_origin.py` draws conclusions.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from torch import Tensor

from .. import torch_private

_MAX_NODES: Final = 256
_SCALARS: Final = {
    "Mul": ("_saved_other",),
    "Div": ("_saved_other",),
    "Add": ("_saved_alpha",),
    "Sub": ("_saved_alpha",),
    "Pow": ("_saved_exponent",),
}
"""Where autograd nodes keep a scalar operand."""
_SINGULAR: Final = (
    *("Log", "Sqrt", "Rsqrt", "Reciprocal", "Exp", "Norm", "LinalgVectorNorm", "Acos"),
    *("Asin", "Atanh", "Acosh", "Erfinv", "Lgamma", "Digamma", "Tan", "Sinh", "Cosh", "Logit", "Xlogy"),
    *("BinaryCrossEntropy", "KlDiv", "NllLoss", "NllLoss2D", "Std", "Var", "Cdist", "Prod", "Expm1"),
    *("LogAddExp", "Logsumexp", "Atan2", "Fmod", "Angle", "Polygamma", "PoissonNll"),
)
"""Names of autograd nodes whose op or derivative can be non-finite at finite operands."""


class Suspicion(IntEnum):
    """How likely an op turns finite values into non-finite ones."""

    NONE = 0
    UNKNOWN = 1
    """A division by something that is no longer known."""
    SINGULAR = 2
    """The op or its derivative is infinite or undefined somewhere."""
    CONSTANT = 3
    """Its other operand is a number that is NaN, infinite, or zero in a division."""


class LossNode(NamedTuple):
    """One autograd node between outputs and loss."""

    name: str
    """Such as ``LogBackward0``."""
    suspicion: Suspicion
    """How likely it turns finite values into non-finite ones."""


def read_loss_graph(
    losses: Iterable[Tensor], *, boundary: int | None, outputs: Container[int] = ()
) -> tuple[tuple[LossNode, ...], bool]:
    """Return the nodes made since `boundary` that lead to `losses`, oldest first. No synchronisation.

    Args:
        losses: what backward is called on.
        boundary: `RootCapture.loss_boundary`; None gives nothing.
        outputs: the numbers of the nodes that made the forward's outputs.

    Returns:
        The nodes, and whether they are all and start from these outputs alone. A module may leave a part of
        the loss on an attribute, say.
    """
    if boundary is None:
        return (), False
    is_closed = True
    pending: list[Any] = [loss.grad_fn for loss in losses]
    seen: set[Any] = set()
    nodes: list[tuple[int, LossNode]] = []
    while pending and len(nodes) < _MAX_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = torch_private.node_sequence_number(node)
        if number is None or number < boundary:
            is_closed = is_closed and number is not None and number in outputs
            continue
        nodes.append((number, _known.get(type(node)) or _describe(node)))
        pending += [child for child, _ in node.next_functions]
    nodes.sort()
    return tuple([node for _, node in nodes]), is_closed and not pending


_known: dict[type[Any], LossNode] = {}
"""Of torch's own classes of nodes whose operands say nothing: some hundreds."""


def _describe(node: Any) -> LossNode:
    """Describe a node of a class that is met for the first time, or whose operands have to be read."""
    name = torch_private.node_name(node)
    described = LossNode(name, _suspicion(node, name))
    # Nodes that torch generates no class for, and the user's own, share theirs or come and go.
    if type(node).__name__ == name and not _scalars_of(name) and not torch_private.is_custom_node(node):
        _known[type(node)] = described
    return described


def _op_of(name: str) -> str:
    return name.rstrip("0123456789").removesuffix("Backward")


def _scalars_of(name: str) -> tuple[str, ...]:
    return _SCALARS.get(_op_of(name), ())


def _suspicion(node: Any, full_name: str) -> Suspicion:
    name = _op_of(full_name)
    known = False
    for attribute in _scalars_of(full_name):
        value = _number(node, attribute)
        if value is not None:
            known = True
            if not math.isfinite(value) or (value == 0 and name == "Div"):
                return Suspicion.CONSTANT
            if name == "Pow" and (value < 1 or value != int(value)):
                return Suspicion.SINGULAR
    if name == "Div" and not known:
        return Suspicion.UNKNOWN
    return Suspicion.SINGULAR if name in _SINGULAR else Suspicion.NONE


def _number(node: Any, attribute: str) -> float | None:
    """A scalar operand in the node. Scalars on a device are not read: the host would have to wait."""
    try:
        value = getattr(node, attribute, None)
    except RuntimeError:  # The backward has freed what it saved.
        return None
    if isinstance(value, Tensor):
        if value.dim() or value.device.type != "cpu" or value.is_complex():
            return None
        value = value.item()
    return float(value) if isinstance(value, int | float) else None
