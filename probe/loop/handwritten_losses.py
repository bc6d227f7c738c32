"""Reads from the graph whether a loss is a binary cross-entropy written by hand, or one of `kl_div`.

Both are never negative with what they expect, and fall without end with anything else. The graph proves
which they are: the factors of log(p) and of log(1 - p) add up to the same number for every element, as y and
1 - y do; a policy's advantages, or a reward, do not. The first operand of `kl_div` are probabilities that add
up to 1. Used by `bounded_losses.py`. Reads some thousand numbers that autograd keeps on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..compat.torch_nodes import node_name, output_shape, saved_tensor, saved_value
from ..guard import let_pass

_MOST_DEPTH: Final = 12
_MOST_STEPS: Final = 8
"""Nodes between a logarithm and the probability that it is of."""
_ELEMENTS: Final = 4096
_ROWS: Final = 64
_TOLERANCE: Final = 1e-4
_REDUCTIONS: Final = frozenset({"Mean", "Sum"})
_VIEWS: Final = frozenset(
    "View UnsafeView ReshapeAlias Squeeze Unsqueeze ToCopy Clone Alias Expand Select".split()
)
_LOGARITHMS: Final = frozenset({"Log", "Log1P", "LogSigmoid"})
_KEEPING: Final = _VIEWS | {"Clamp", "ClampMin", "ClampMax", "Sigmoid"}
"""A script may call `sigmoid` once for each logarithm."""
_REVERSING: Final = frozenset({"Rsub", "Neg"})


class _Term(NamedTuple):
    """Of a sum: a number times constants times a logarithm."""

    scale: float
    factors: Tensor
    logarithm: Any


def is_binary_cross_entropy(node: Any) -> bool:
    """Whether a node made -(y log(p) + (1 - y) log(1 - p)) of constants y, averaged or summed or not."""
    try:
        terms = list(_terms(node, 1.0, _MOST_DEPTH))
    except (RuntimeError, ValueError) as error:
        # Freed by a backward, or another function.
        let_pass(error)
        return False
    if len(terms) != 2:
        return False
    first, second = terms
    base, other = _base_of(first.logarithm), _base_of(second.logarithm)
    is_opposite = base[0] is not None and base[0] is other[0] and base[1] != other[1]
    return is_opposite and _add_up(first, second)


def is_divergence(node: Any) -> bool:
    """Whether a node made the elements t log(t) - t x of `kl_div`, or the sum of all t (log(t) - x), of
    probabilities t."""
    name, children = _name(node), _children(node)
    if name == "Sub":
        # What comes off is the product; what it comes off has no graph.
        product = children[1] if len(children) == 2 and children[0] is None else None
        return _name(product) == "Mul" and _is_of_probabilities(product)
    if name not in _REDUCTIONS or output_shape(node) != ():
        # Over one dimension alone it may be the expectation of what a fixed policy gains.
        return False
    product = children[0]
    learnt = [child for child in _children(product) if child is not None]
    if _name(product) != "Mul" or len(learnt) != 1 or _name(learnt[0]) != "Sub":
        return False
    is_difference = [child is None for child in _children(learnt[0])] == [True, False]
    return is_difference and _is_of_probabilities(product, least=math.ulp(0.0))


def _name(node: Any) -> str:
    return "" if node is None else node_name(node).partition("Backward")[0]


def _children(node: Any) -> list[Any]:
    return [] if node is None else [child for child, _ in node.next_functions]


# -- a sum of logarithms


def _terms(node: Any, scale: float, depth: int) -> Iterator[_Term]:
    """Yield what is added up.

    Raises:
        ValueError: something else is in it.
    """
    name, children = _name(node), _children(node)
    if not depth:
        raise ValueError(name)
    if name in _REDUCTIONS or name in _VIEWS:
        yield from _terms(children[0], scale, depth - 1)
    elif name == "Neg":
        yield from _terms(children[0], -scale, depth - 1)
    elif name in ("Add", "Sub") and len(children) == 2 and None not in children:
        yield from _terms(children[0], scale, depth - 1)
        yield from _terms(children[1], scale if name == "Add" else -scale, depth - 1)
    elif name in ("Mul", "Div") and (number := _number(node, children)) is not None:
        factor = number if name == "Mul" else 1.0 / number
        yield from _terms(children[0], scale * factor, depth - 1)
    elif name == "Mul":
        yield _product(node, children, scale)
    else:
        raise ValueError(name)


def _number(node: Any, children: list[Any]) -> float | None:
    """The constant that the first operand is multiplied or divided by; None where there is none to read."""
    other = saved_value(node, "other") if len(children) == 2 and children[1] is None else None
    if isinstance(other, Tensor):
        if other.numel() != 1 or not other.is_cpu:
            return None
        other = other.item()
    return float(other) if isinstance(other, int | float) and other and math.isfinite(other) else None


def _product(node: Any, children: list[Any], scale: float) -> _Term:
    learnt = [child for child in children if child is not None]
    factors = _constants(node, children)
    if factors is None or len(learnt) != 1 or not factors.is_cpu:
        raise ValueError("a product of two things that are learnt")
    logarithm = learnt[0]
    for _ in range(_MOST_STEPS):
        if _name(logarithm) not in _VIEWS:
            break
        logarithm = _children(logarithm)[0]
    if _name(logarithm) not in _LOGARITHMS:
        raise ValueError(_name(logarithm))
    return _Term(scale, factors, logarithm)


def _constants(node: Any, children: list[Any]) -> Tensor | None:
    """The operand of a product that no gradient goes to."""
    if len(children) != 2:
        return None
    return saved_tensor(node, "self" if children[0] is None else "other")


def _base_of(logarithm: Any) -> tuple[Any, bool]:
    """What a logarithm is of, behind `clamp` and `1 - p`; and whether it is of 1 - p."""
    node, is_reversed = _children(logarithm)[0], False
    for _ in range(_MOST_STEPS):
        name, children = _name(node), _children(node)
        learnt = [child for child in children if child is not None]
        is_shifted = name in ("Add", "Sub") and len(learnt) == 1
        if name in _REVERSING or (name == "Sub" and children[:1] == [None]):
            is_reversed = not is_reversed
        elif not (name in _KEEPING or is_shifted):
            break
        if len(learnt) != 1:
            break
        node = learnt[0]
    return node, is_reversed


def _add_up(first: _Term, second: _Term) -> bool:
    """Whether the factors of both add up to the same number below 0 for every element."""
    if first.factors.shape != second.factors.shape or not first.factors.numel():
        return False
    with torch.no_grad():
        both = first.scale * _some(first.factors) + second.scale * _some(second.factors)
        low, high = float(both.min()), float(both.max())
    return high - low < -_TOLERANCE * high


def _some(tensor: Tensor) -> Tensor:
    return tensor.detach()[:_ELEMENTS].reshape(-1)[:_ELEMENTS].double() if tensor.dim() else tensor.double()


# -- probabilities


def _is_of_probabilities(product: Any, least: float = 0.0) -> bool:
    """Whether the constants of a product are rows of probabilities, some of them zeros: what is padded."""
    constants = _constants(product, _children(product))
    if constants is None or constants.dim() < 2 or not constants.is_floating_point() or not constants.is_cpu:
        return False
    rows = max(min(_ROWS, 16 * _ELEMENTS // max(constants[0].numel(), 1)), 1)
    with torch.no_grad():
        some = constants.detach()[:rows].double()
        if not bool((some >= least).all()) or not bool(some.any()):
            return False
        # One class is a weight.
        return any(some.shape[dim] > 1 and _are_ones(some.sum(dim)) for dim in (1, -1))


def _are_ones(sums: Tensor) -> bool:
    return bool((((sums - 1.0).abs() < 10 * _TOLERANCE) | (sums == 0.0)).all())
