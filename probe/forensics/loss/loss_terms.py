"""Reads from the graph of a loss what it was divided by: an accumulation's micro-steps, or a number of items.

Looks at the last few nodes and runs nothing; waits for no device. On the training thread, at every backward.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from torch import Tensor

from ...compat.torch_nodes import node_name, output_shape, saved_operands, saved_tensor, saved_value
from ...guard import let_pass
from .loss_graph import LossGraph

_MOST_NODES: Final = 16
_SCALED: Final = ("DivBackward0", "MulBackward0")
_PASSED: Final = frozenset({"CloneBackward0", "ToCopyBackward0", "NegBackward0", "AliasBackward0"})
_PASSED_SHAPES: Final = frozenset({"ViewBackward0", "SqueezeBackward0", "UnsafeViewBackward0"})
_SUMS: Final = ("AddBackward0", "SubBackward0")
_SUM_REDUCTION: Final = 2
"""`at::Reduction::Sum`, as nodes of losses keep it."""


LOOKED_THROUGH: Final = frozenset({*_SCALED, *_PASSED, *_PASSED_SHAPES, *_SUMS})
"""Names of nodes that alone do not say what a loss is made of."""


class LossTerms(NamedTuple):
    """What the graph of a loss says of its scale."""

    divisor: float | None = None
    """The loss is `something / d`, or times 1 / d, with this constant d."""
    share: float | None = None
    """Of a sum over items that was divided: items in the sum, over the divisor."""
    node: type[Any] | None = None
    """Of the operation under all constant factors, which tells losses apart."""
    divider: Tensor | None = None
    """What a sum was divided by, where reading it would wait for a device. One object for all losses that
    were divided by the same tensor, as long as one of them is held."""


NO_TERMS: Final = LossTerms()


NotedLoss = tuple[float, float, type[Any] | None, LossTerms, LossGraph]
"""What C is given of a loss: divisor and share, NaN for none, and the node; and what it keeps for Python."""


def read_terms(loss: Tensor) -> LossTerms:
    """Return what the graph of a loss says; nothing of one whose graph a backward has freed."""
    node = loss.grad_fn
    if node is None:
        return NO_TERMS
    reading = _Reading()
    try:
        divisor, share = reading.divisor(node), reading.share(node)
    except RuntimeError as error:
        # A backward has freed it: the one that is about to begin will fail, in its own words.
        let_pass(error)
        return NO_TERMS._replace(node=type(node))
    return LossTerms(divisor, share, reading.core(node), reading.divider if reading.has_sum else None)


class _Reading:
    """One look at one graph, of a limited number of nodes."""

    def __init__(self) -> None:
        self._left = _MOST_NODES
        self.divider: Tensor | None = None
        self.has_sum = False
        """Whether a sum was found under a divider that cannot be read."""

    def divisor(self, node: Any, depth: int = 4) -> float | None:
        """The constant that a node divides by; a division by 1 says nothing, so see below it."""
        name = "" if node is None or not depth else node_name(node)
        if name in _PASSED:
            return self.divisor(_below(node), depth - 1)
        if name in _SUMS:
            # (a / n) + (b / n): both or none.
            found = {self.divisor(child, depth - 1) for child, _ in node.next_functions}
            return found.pop() if len(found) == 1 else None
        if name not in _SCALED:
            return None
        factor, _ = _factor(node, name)
        if factor is None or not factor:
            return None
        # What Accelerate does to a loss that the Hugging Face trainer has divided already.
        return self.divisor(_below(node), depth - 1) if factor == 1.0 else _inverse(node, name, factor)

    def core(self, node: Any) -> type[Any]:
        """The type of the first node that is no constant factor."""
        for _ in range(_MOST_NODES):
            name = node_name(node)
            if not (name in _PASSED or name in _PASSED_SHAPES or (name in _SCALED and _is_unary(node))):
                break
            below = _below(node)
            if below is None:
                break
            node = below
        return type(node)

    def share(self, node: Any, factor: float = 1.0) -> float | None:
        """Items of the sums that a node is made of, each over what it was divided by; None without any."""
        self._left -= 1
        if node is None or self._left < 0:
            return None
        name = node_name(node)
        if name in _PASSED or name in _PASSED_SHAPES:
            return self.share(_below(node), factor)
        if name in _SUMS:
            found = [self.share(child, factor) for child, _ in node.next_functions]
            known = [one for one in found if one is not None]
            return sum(known) if known else None
        if name in _SCALED:
            if not _is_unary(node):
                return None
            times, unread = _factor(node, name)
            if unread is not None:
                self.divider = unread
                times = math.nan
            return None if times is None else self.share(_below(node), factor * times)
        items = _items(node, name)
        if items is None or factor == 1.0:
            return None
        if math.isnan(factor):
            self.has_sum = True
            return None
        return abs(factor) * items


def _below(node: Any) -> Any:
    return next((child for child, _ in node.next_functions if child is not None), None)


def _is_unary(node: Any) -> bool:
    return sum(child is not None for child, _ in node.next_functions) == 1


def _factor(node: Any, name: str) -> tuple[float | None, Tensor | None]:
    """What a node multiplies by, where that is a constant; or the tensor, where reading it would wait."""
    itself, other = saved_operands(node)
    if name == "DivBackward0":
        # Autograd keeps the dividend where the divisor needs a gradient, and only then.
        value = None if itself is not None else other
    else:
        value = other if itself is None else itself if other is None else None
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        return None, None
    if not value.is_cpu:
        return None, value
    number = float(value)
    if name == "MulBackward0":
        return number, None
    return (1.0 / number if number else None), None


def _inverse(node: Any, name: str, factor: float) -> float:
    """What was divided by, not rounded where it is kept itself."""
    if name == "DivBackward0":
        return float(saved_operands(node)[1])
    return 1.0 / factor


def _items(node: Any, name: str) -> float | None:
    """How many items a node has summed up; None where it is no sum of several."""
    if name == "SumBackward0":
        sizes = saved_value(node, "self_sym_sizes")
        return None if sizes is None else float(math.prod(int(size) for size in sizes))
    if saved_value(node, "reduction") != _SUM_REDUCTION:
        return None
    weight = saved_tensor(node, "total_weight")
    if weight is not None and weight.is_cpu:
        return float(weight)
    summed = output_shape(_below(node))
    if not summed:
        return None
    # Of scores for each class one is an item: those of (samples, classes, ...).
    classes = summed[1] if name.startswith("NllLoss") and len(summed) > 1 else 1
    return math.prod(summed) / max(classes, 1)
