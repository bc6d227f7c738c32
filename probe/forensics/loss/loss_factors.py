"""A NaN or Inf that entered a loss as a constant operand, or a divisor of 0, wherever in the graph that was.

A loss that was collected over many calls has most of its nodes from before the newest forward, and keeps few
operands: what is found here made the loss bad whatever else it read. Used by `loss_origin.py` on a bad loss,
before its backward; training thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor

from ...compat import torch_nodes
from ...wire import TensorFacts
from ..nonfinite_kinds import EITHER_KIND
from ..tensor_facts import classify, facts_of
from .loss_values import SPREADS, operand_name, operand_of, operation_of

_MOST_NODES: Final = 20_000
_PASSES_ON: Final = SPREADS | {"Div", "Rsub"}
_READS: Final = frozenset("Mul Div MseLoss L1Loss SmoothL1Loss HuberLoss Addmm Mm Bmm".split())
"""Ops whose output is surely non-finite where an operand that they keep is."""


class BadFactor(NamedTuple):
    """An operand that made a loss non-finite by itself."""

    op: str
    note: str
    operand: TensorFacts
    value_kind: str
    is_from_outside: bool
    """Whether it was NaN or infinite itself, and not 0."""
    is_single: bool
    """Whether no other operation of its kind leads to the loss."""


def find_bad_factor(losses: Iterable[Tensor]) -> BadFactor | None:
    """Return the earliest such operand on a way on which a bad value cannot get lost; None without one."""
    nodes = sorted(
        _surely_reaching([loss.grad_fn for loss in losses]),
        key=lambda node: torch_nodes.node_sequence_number(node) or 0,
    )
    found = ((node, *bad) for node in nodes if (bad := _bad_operand(node)) is not None)
    first = next(found, None)
    if first is None:
        return None
    node, name, operand, what = first
    alike = [other for other in nodes if torch_nodes.node_name(other) == torch_nodes.node_name(node)]
    place = f", in number {alike.index(node) + 1} of {len(alike)} such operations" if len(alike) > 1 else ""
    kinds = classify(operand)
    return BadFactor(
        op=torch_nodes.node_name(node),
        note=f"its operand ({name}) was {what}{place}",
        operand=facts_of(operand, role="operand", name=f"{name}{place}"),
        value_kind=EITHER_KIND if not kinds else kinds.words,
        is_from_outside=bool(kinds),
        is_single=len(alike) == 1,
    )


def _surely_reaching(roots: Sequence[Any]) -> Iterator[Any]:
    """The nodes whose non-finite output makes a root non-finite."""
    pending, seen = list(roots), set[Any]()
    while pending and len(seen) < _MOST_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        op, children = operation_of(node), [child for child, _ in node.next_functions]
        if op in _PASSES_ON:
            # What is divided by infinity is 0.
            pending += children[:1] if op == "Div" else children


def _bad_operand(node: Any) -> tuple[str, Tensor, str] | None:
    """Name, value and in words what is wrong with it."""
    op = operation_of(node)
    if op not in _READS:
        return None
    for position, (child, _) in enumerate(node.next_functions):
        operand = operand_of(node, position)
        name = operand_name(node, position)
        if operand is None or name is None or not operand.is_cpu:
            continue
        if op == "Div" and position == 1 and bool((operand == 0).any()):
            return name, operand, "0"
        # What a differentiable op made, or a parameter, may have been made bad elsewhere.
        if child is None and classify(operand):
            return name, operand, "already non-finite"
    return None
