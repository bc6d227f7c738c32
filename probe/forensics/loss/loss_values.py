"""What is known of the values in a loss's graph, read from what its nodes keep for backward.

Used by `loss_origin.py` on a bad loss, before its backward; training thread.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ...compat import torch_nodes
from ..held_outputs import HeldOutput, held_values
from ..nonfinite_kinds import Kinds
from ..tensor_facts import classify
from .loss_graph import MAX_NODES
from .loss_ops import NO_LARGER, operation

SPREADS: Final = frozenset(
    (
        "Add Sub Mul Sum Mean Neg Abs View UnsafeView ReshapeAlias Squeeze Unsqueeze T Transpose Permute "
        "Expand Clone Alias Cat Stack Sqrt Log MseLoss L1Loss Mm Bmm Addmm"
    ).split()
)
"""Ops whose output is surely non-finite where an operand is."""
_OPERANDS: Final = (("self", "input"), ("other", "target"))
"""Under which names torch's nodes keep their operands, by position."""
_OPERANDS_OF: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "Mm": (("self",), ("mat2",)),
    "Bmm": (("self",), ("mat2",)),
    "Addmm": ((), ("mat1",), ("mat2",)),
}
_RESULTS: Final = ("result", "output")
_OF_ONE: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "Log": torch.log,
    "Log1P": torch.log1p,
    "Log2": torch.log2,
    "Log10": torch.log10,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atanh": torch.atanh,
    "Acosh": torch.acosh,
    "Lgamma": torch.lgamma,
}
_OF_TWO: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {"Mul": torch.mul, "Div": torch.div}
"""Ops whose nodes keep the operands and not the result."""
_SMALL: Final = 6e4
"""What no floating type that training uses overflows at."""


def operation_of(node: Any) -> str:
    """ "Log" of a LogBackward0."""
    return operation(torch_nodes.node_name(node))


class LossValues:
    """The nodes made since the forward that lead to some losses, and what is known of their values.

    Attributes:
        nodes: those that reach the losses through values not known to be finite, in the order of time.
        sure: those of them that do so through values known not to be finite.
        is_whole: whether these are all.
    """

    def __init__(self, losses: Sequence[Tensor], boundary: int, outputs: Sequence[HeldOutput]) -> None:
        """Take what backward is called on, the first node's number after the forward, and its outputs."""
        self._boundary = boundary
        self._outputs = [(number, held_values(held)) for held in outputs if (number := held[2]) is not None]
        self._kinds: dict[Any, Kinds] = {}
        self._bounds: dict[Any, float] = {}
        self.is_whole = True
        roots = [loss.grad_fn for loss in losses]
        nodes = self._reaching(roots)
        self._read(nodes)
        self._bound(nodes)
        self._kinds |= {loss.grad_fn: classify(loss) for loss in losses}
        # An infinity that became a finite value on its way has done no harm.
        self.nodes = self._reaching(roots)
        for node in self.nodes:
            self._spread(node)
        self.sure = frozenset(self._reaching(roots, surely=True))

    def made(self, node: Any) -> Kinds | None:
        """What the outputs of a node hold; None where that is not known."""
        return self._kinds.get(node)

    def read(self, node: Any, position: int) -> Kinds | None:
        """What an operand of a node holds; None where that is not known."""
        kept, child = operand_of(node, position), node.next_functions[position][0]
        if kept is None:
            kept = leaf_of(child)
        return self._kinds.get(child) if kept is None else classify(kept)

    def is_from_the_loss(self, node: Any) -> bool:
        """Whether a node was made since the forward."""
        number = None if node is None else torch_nodes.node_sequence_number(node)
        return number is not None and number >= self._boundary

    def is_output(self, node: Any) -> bool:
        """Whether a node made an output of the forward."""
        number = torch_nodes.node_sequence_number(node)
        return any(number == own for own, _ in self._outputs)

    def _spread(self, node: Any) -> None:
        """Note that a node's output is bad where an operand makes it so."""
        if node in self._kinds or operation_of(node) not in SPREADS:
            return
        read = (self.read(node, position) for position in range(len(node.next_functions)))
        kinds = functools.reduce(operator.or_, (kinds or Kinds.NONE for kinds in read), Kinds.NONE)
        if kinds:
            self._kinds[node] = kinds

    def _reaching(self, roots: Sequence[Any], *, surely: bool = False) -> list[Any]:
        pending, seen = list(roots), set()
        found: list[Any] = []
        while pending:
            node = pending.pop()
            if node in seen or not self.is_from_the_loss(node) or self._kinds.get(node) == Kinds.NONE:
                continue
            if surely and node not in self._kinds:
                continue
            if len(found) >= MAX_NODES:
                self.is_whole = False
                break
            seen.add(node)
            found.append(node)
            pending.extend(child for child, _ in node.next_functions)
        return sorted(found, key=lambda node: torch_nodes.node_sequence_number(node) or 0)

    def _read(self, nodes: Sequence[Any]) -> None:
        """Note of each node's output what it, or a node that read it, has kept."""
        for node in nodes:
            for position, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    self._note(child, operand_of(node, position))
                    self._note_output(child)
            for name in _RESULTS:
                self._note(node, torch_nodes.saved_tensor(node, name))
        for node in nodes:
            if node not in self._kinds:
                self._note(node, _computed_again(node))

    def _note(self, node: Any, output: Tensor | None) -> None:
        if output is None:
            return
        # A node may have several outputs.
        self._kinds[node] = kinds = self._kinds.get(node, Kinds.NONE) | classify(output)
        if not kinds and output.numel():
            self._bounds[node] = max(self._bounds.get(node, 0.0), float(output.abs().max()))

    def _note_output(self, node: Any) -> None:
        """Note what the forward returned, where a node made that and it is still at hand."""
        if node in self._kinds or self.is_from_the_loss(node):
            return
        own = [values for number, values in self._outputs if number == torch_nodes.node_sequence_number(node)]
        if own and all(values is not None for values in own):
            for values in own:
                self._note(node, values)

    def _bound(self, nodes: Sequence[Any]) -> None:
        """Find the nodes whose output must be finite, as what they read is known to be small."""
        for node in nodes:
            bound = None if node in self._kinds else self._bound_of(node)
            if bound is not None and bound < _SMALL:
                self._bounds[node], self._kinds[node] = bound, Kinds.NONE

    def _bound_of(self, node: Any) -> float | None:
        """The largest absolute value that a node can have made; None where it is not known."""
        name = operation_of(node)
        read = [self._bounds.get(child) for child, _ in node.next_functions if child is not None]
        bounds = [bound for bound in read if bound is not None]
        if len(bounds) != len(node.next_functions):
            return None
        if name in NO_LARGER:
            return bounds[0] + 1
        if name in ("Sum", "Mean"):
            sizes = torch_nodes.saved_value(node, "self_sym_sizes")
            return None if sizes is None else bounds[0] * float(math.prod(sizes))
        if name in ("Add", "Sub"):
            return bounds[0] + bounds[1] * abs(float(torch_nodes.saved_value(node, "alpha", math.inf)))
        return None


def leaf_of(child: Any) -> Tensor | None:
    """The leaf, such as a parameter, whose gradient an autograd node accumulates; None for other nodes."""
    leaf = getattr(child, "variable", None)
    return leaf if isinstance(leaf, Tensor) else None


def operand_of(node: Any, position: int) -> Tensor | None:
    """What a node keeps of an operand."""
    name = operand_name(node, position)
    return None if name is None else torch_nodes.saved_tensor(node, name)


def operand_name(node: Any, position: int) -> str | None:
    """What torch calls an operand that a node keeps; None where it keeps none."""
    by_position = _OPERANDS_OF.get(operation_of(node), _OPERANDS)
    names = by_position[position] if position < len(by_position) else ()
    return next((name for name in names if torch_nodes.saved_tensor(node, name) is not None), None)


def _computed_again(node: Any) -> Tensor | None:
    """The output of an op whose node keeps the operands and not the result."""
    name, first, second = operation_of(node), operand_of(node, 0), operand_of(node, 1)
    if first is None:
        return None
    if name in _OF_ONE:
        return _OF_ONE[name](first)
    if name == "Pow":
        exponent = torch_nodes.saved_value(node, "exponent")
        return first.pow(exponent) if isinstance(exponent, int | float) else None
    return _OF_TWO[name](first, second) if second is not None and name in _OF_TWO else None
