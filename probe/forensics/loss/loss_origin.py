"""Which op between the model's outputs and the loss went wrong: named only where nothing else can have.

`examine_loss` looks at the values in a bad loss's graph before backward frees them. Where the loss is finite,
what its nodes sent back tells (`loss_gradients.py`), or else their names (`only_suspect`). Training thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from ...compat import torch_modes, torch_nodes
from ...wire import TensorFacts
from ..held_outputs import HeldOutput
from ..nonfinite_kinds import EITHER_KIND, Kinds
from ..tensor_facts import classify, facts_of
from .loss_factors import BadFactor, find_bad_factor
from .loss_graph import MAX_NODES, LossNode
from .loss_ops import NO_LARGER, PASSING, operation
from .loss_values import LossValues, leaf_of, operand_name, operand_of, operation_of

_JOINS: Final = PASSING | {"Cat", "Stack"}
_SUMS: Final = ("Add", "Sub", "Rsub")
NOT_KEPT: Final = "an operand that is not kept was already non-finite, or it overflowed"


class LossFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Where a non-finite loss became so."""

    op: str | None = None
    """Autograd node, such as ``LogBackward0``; None where it is not certain."""
    note: str = ""
    """What is to be known about its operands; a clause without a full stop."""
    operands: tuple[TensorFacts, ...] = ()
    """Summary of the operand that was bad from the start."""
    candidates: tuple[str, ...] = ()
    """The nodes that it may have been, where `op` is None."""
    is_proven: bool = False
    """Whether what the op read is known to have been finite, whatever the model's outputs were."""
    value_kind: str = EITHER_KIND
    """What it made, where that is known."""
    is_from_outside: bool = False
    """Whether that operand was NaN or infinite when the op read it, and no differentiable op had made it."""
    is_closed: bool = True
    """Whether the loss is known to be made of nothing of the forward but its outputs."""


def examine_loss(
    losses: Iterable[Tensor], *, boundary: int | None, outputs: Sequence[HeldOutput]
) -> LossFinding | None:
    """Find the op that made a loss non-finite; to be called before backward frees what its graph holds.

    Costs a microsecond where the losses are finite, and never waits for a device.

    Args:
        losses: what backward is called on.
        boundary: the number of the first autograd node after the forward.
        outputs: of that forward.

    Returns:
        None when all losses are finite, or on a device.
    """
    bad = [loss for loss in losses if _is_known_bad(loss)]
    if not bad or boundary is None:
        return None
    with torch.no_grad():
        finding = _finding(LossValues(bad, boundary, outputs))
        is_told = finding.op is not None or finding.note
        factor = None if is_told else find_bad_factor(bad)
    if factor is None or (finding.is_closed and not _is_the_first(factor, finding)):
        return finding
    return LossFinding(
        op=factor.op,
        note=factor.note,
        operands=(factor.operand,),
        is_proven=True,
        value_kind=factor.value_kind,
        is_from_outside=factor.is_from_outside,
        is_closed=finding.is_closed,
    )


def _is_the_first(factor: BadFactor, finding: LossFinding) -> bool:
    """Whether no other operation of a loss that is known whole can have made a bad value before."""
    others = [name for name in finding.candidates if name != factor.op]
    return factor.is_from_outside and factor.is_single and all(operation(n) in _JOINS for n in others)


def only_suspect(nodes: Sequence[LossNode], *, is_loss_finite: bool) -> tuple[str | None, tuple[str, ...]]:
    """Return the one node that can have made bad gradients, if only one can, and all that can have.

    For what the nodes sent back was not noted: `LossGradients` knows.

    Args:
        nodes: all nodes between one forward and the loss, oldest first.
        is_loss_finite: then what else entered the loss, such as targets, was finite too, and nothing there
            overflowed; to be taken for false in float16, whose derivatives overflow by ordinary factors.
    """
    suspects = [
        position
        for position, node in enumerate(nodes)
        if not (node.is_calm if is_loss_finite else operation(node.name) in NO_LARGER)
    ]
    names = tuple(dict.fromkeys(nodes[position].name for position in suspects))
    if len(suspects) != 1 or len(nodes) >= MAX_NODES:
        return None, names
    # What it made may be so large that a sum of it overflows.
    is_certain = all(operation(node.name) in PASSING for node in nodes[: suspects[0]])
    return names[0] if is_certain else None, names


def _is_known_bad(loss: Tensor) -> bool:
    if not loss.is_cpu or loss.numel() != 1 or not loss.is_floating_point():
        return False
    if loss.layout is not torch.strided or torch_modes.is_functorch_wrapped(loss):
        return False
    return not math.isfinite(loss.item())


def _finding(values: LossValues) -> LossFinding:
    """Go through the nodes in the order of time."""
    suspects: list[LossFinding] = []
    is_closed = values.is_whole
    for node in values.nodes:
        before = [p for p in range(len(node.next_functions)) if _is_bad_from_before(values, node, p)]
        if before:
            is_leaf = leaf_of(node.next_functions[before[0]][0]) is not None
            what = (
                "a parameter or leaf tensor that entered the loss" if is_leaf else "what the loss was made of"
            )
            return LossFinding(note=f"{what} was already non-finite", is_closed=False)
        found = _bad_from_outside(values, node) or _made_here(values, node)
        if found is None:
            continue
        if found.is_proven and node in values.sure:
            return found
        is_closed = is_closed and not _reads_from_elsewhere(values, node)
        if found.note or operation_of(node) not in NO_LARGER:
            suspects.append(found)
    if is_closed and len(suspects) == 1 and not suspects[0].is_proven:
        return msgspec.structs.replace(suspects[0], **_perhaps_from_outside(values, suspects[0]))
    candidates = tuple(dict.fromkeys(found.op for found in suspects if found.op))
    return LossFinding(candidates=candidates, is_closed=is_closed)


def _is_bad_from_before(values: LossValues, node: Any, position: int) -> bool:
    """Whether an operand comes from before the end of the forward, and is bad."""
    child = node.next_functions[position][0]
    return child is not None and not values.is_from_the_loss(child) and bool(values.read(node, position))


def _bad_from_outside(values: LossValues, node: Any) -> LossFinding | None:
    """An operand that is no differentiable op's result, and bad: a target, a weight, a number."""
    positions = range(len(node.next_functions))
    for position in positions:
        operand = operand_of(node, position)
        kinds = Kinds.NONE
        if operand is not None and node.next_functions[position][0] is None:
            kinds = classify(operand)
        if operand is None or not kinds:
            continue
        name = operand_name(node, position)
        others = (values.read(node, other) for other in positions if other != position)
        return LossFinding(
            op=torch_nodes.node_name(node),
            is_proven=all(kinds == Kinds.NONE for kinds in others),
            value_kind=kinds.words,
            note=f"its operand ({name}) was already non-finite",
            is_from_outside=True,
            operands=(facts_of(operand, role="operand", name=name or ""),),
        )
    return None


def _made_here(values: LossValues, node: Any) -> LossFinding | None:
    """The node as a suspect, or as proven where all it read was finite; None where it only passes on."""
    made = values.made(node)
    read = [values.read(node, position) for position in range(len(node.next_functions))]
    if any(read):
        return None
    name = torch_nodes.node_name(node)
    if made and all(kinds == Kinds.NONE for kinds in read):
        return LossFinding(op=name, is_proven=True, value_kind=made.words)
    return LossFinding(op=name)


def _perhaps_from_outside(values: LossValues, suspect: LossFinding) -> dict[str, Any]:
    """What to say of a sum whose other operand is not kept: finite numbers add up to a finite one."""
    node = next(node for node in values.nodes if torch_nodes.node_name(node) == suspect.op)
    constants = [p for p, (child, _) in enumerate(node.next_functions) if child is None]
    if operation_of(node) not in _SUMS or all(operand_of(node, p) is not None for p in constants):
        return {}
    return {"is_from_outside": True, "note": NOT_KEPT}


def _reads_from_elsewhere(values: LossValues, node: Any) -> bool:
    """Whether it reads what was computed before the end of the forward and is none of its outputs."""
    for position, (child, _) in enumerate(node.next_functions):
        if child is None or values.is_from_the_loss(child) or values.is_output(child):
            continue
        if values.read(node, position) != Kinds.NONE:
            return True
    return False
