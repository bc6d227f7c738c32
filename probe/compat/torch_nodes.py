"""What the nodes of an autograd graph say of themselves: number, name, operands that are kept, shapes.

Reads a node and runs nothing. Where torch does not say, None or nothing is returned.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..guard import let_pass


def available() -> dict[str, bool]:
    """Return which of the private attributes here a node of this torch has; makes a node to look at."""
    with torch.enable_grad():
        node = (torch.ones(1, requires_grad=True) * torch.ones(1)).grad_fn
    return {
        f"torch.autograd.graph.Node.{name}": hasattr(node, name)
        for name in ("_sequence_nr", "_saved_self", "_raw_saved_self", "_input_metadata")
    }


def node_sequence_number(node: Any) -> int | None:
    """Sequence number of an autograd node; None for nodes without one, such as `AccumulateGrad`."""
    number = getattr(node, "_sequence_nr", None)
    value: int | None = None if number is None else number()
    # AccumulateGrad carries 2**64 - 1, which stands for "none".
    return None if value is None or value >= 2**63 else value


def is_custom_node(node: Any) -> bool:
    """Whether an autograd node is that of a user's `autograd.Function`."""
    return isinstance(node, BackwardCFunction)


def runs_own_python(node: Any) -> bool:
    """Whether a node's derivative is that of a user's `autograd.Function`, and not the carrier of hooks."""
    return is_custom_node(node) and type(node).__name__ != "BackwardHookFunctionBackward"


def forward_code(node: Any) -> types.CodeType | None:
    """The code of the forward of a user's `autograd.Function`, by its node; None where torch cannot say."""
    if not is_custom_node(node):
        return None
    forward = getattr(getattr(type(node), "_forward_cls", None), "forward", None)
    return getattr(forward, "__code__", None)


def node_name(node: Any) -> str:
    """Name of an autograd node such as ``SqrtBackward0``; a user's Function gives its class name."""
    name: str = node.name() if callable(getattr(node, "name", None)) else type(node).__name__
    return name.rsplit("::", 1)[-1]


def leaves_of(losses: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the leaf tensors that the backward of `losses` reaches; the graph may have been freed already."""
    waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def saved_exponent(node: Any) -> float | None:
    """The number that a node of `pow` raises to; None of another node, or where torch does not tell."""
    try:
        exponent = getattr(node, "_saved_exponent", None)
    except RuntimeError as error:
        # A backward has freed it.
        let_pass(error)
        return None
    return float(exponent) if isinstance(exponent, int | float) else None


def saved_tensors(node: Any) -> Iterator[Tensor]:
    """Yield what an autograd node keeps for its backward, without unpacking anything.

    What somebody's saved-tensor hooks took away (a checkpoint, say) is left out: unpacking could compute it
    anew. Nothing where torch cannot say.
    """
    if is_custom_node(node):
        names: tuple[str, ...] = ("_raw_saved_tensors",)
    else:
        names = _saved_names.get(type(node), ())
        if type(node) not in _saved_names:
            names = tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
            _saved_names[type(node)] = names
    for name in names:
        saved = getattr(node, name)
        for one in saved if isinstance(saved, tuple | list) else (saved,):
            if getattr(one, "unpack_hook", one) is None and isinstance(one.data, Tensor):
                yield one.data


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """What an autograd node keeps under a name such as ``"self"``, not unpacked; None where there is none."""
    saved: Any = getattr(node, f"_raw_saved_{name}", None)
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:
        return None
    return saved.data if isinstance(saved.data, Tensor) else None


_saved_names: dict[type[Any], tuple[str, ...]] = {}
"""Of torch's own nodes, some hundred classes."""


def backward_of(tensor: Tensor) -> tuple[Any, int] | None:
    """Return the autograd node that made a tensor, and its sequence number; None for a leaf."""
    node = tensor.grad_fn
    number = None if node is None else node_sequence_number(node)
    return None if number is None else (node, number)


def saved_value(node: Any, name: str, default: Any = None) -> Any:
    """What a node keeps under a name such as ``"dim"``, unpacked; `default` where it keeps none.

    Raises:
        RuntimeError: a backward has freed it.
    """
    return getattr(node, f"_saved_{name}", default)


def saved_operands(node: Any) -> tuple[Any, Any]:
    """What a node keeps of its two operands, unpacked; see `saved_value`."""
    return getattr(node, "_saved_self", None), getattr(node, "_saved_other", None)


def output_shape(node: Any) -> tuple[int, ...] | None:
    """Shape of what a node made."""
    made = getattr(node, "_input_metadata", None)
    try:
        return tuple(int(length) for length in made[0].shape) if made else None
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        let_pass(error)
        return None
