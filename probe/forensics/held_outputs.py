"""What is kept of a forward's outputs, and whether a replay returned the same: else nothing may be claimed.

The capture holds them at every step, so a small output costs an alias (its graph is free to go) and a large
one a weak reference, which is good for as long as the script itself keeps the output.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec
import torch
from torch import Tensor

from ..compat import torch_memory, torch_nodes
from ..compat.torch_memory import version
from .tensor_facts import classify, is_checkable

_ALIAS_BYTES: Final = 1 << 18
"""An output whose storage is larger is not kept alive."""
_RELATIVE_TOLERANCE: Final = 1e-2
"""Of the largest element: a compiled forward in bf16 differs from an eager one by so much."""
NOT_RESTORED: Final = (
    "something that a replay cannot restore, such as a counter, a NumPy generator or weights written since"
)
_CAUSE: Final = f"it depends on {NOT_RESTORED}"


HeldOutput: TypeAlias = tuple[Tensor | weakref.ref[Tensor], int, int | None]
"""One output as it was when the forward returned: itself without its graph, or a reference; its version; the
sequence number of the autograd node that made it."""


def hold_outputs(tensors: Iterable[Tensor]) -> list[HeldOutput]:
    """Hold what `find_outputs` gave, in its order; about a microsecond each."""
    return [
        (
            tensor.detach() if _is_small(tensor) else weakref.ref(tensor),
            version(tensor),
            torch_nodes.node_sequence_number(tensor.grad_fn),
        )
        for tensor in tensors
        if tensor.layout is torch.strided
    ]


def held_values(held: HeldOutput) -> Tensor | None:
    """Return an output; None when it is gone, or was changed in place since."""
    tensor = held[0] if isinstance(held[0], Tensor) else held[0]()
    return None if tensor is None or version(tensor) != held[1] else tensor.detach()


def _is_small(tensor: Tensor) -> bool:
    if tensor.nbytes > _ALIAS_BYTES:
        return False
    # A small view of a large tensor would keep all of that one.
    return not torch_memory.is_view(tensor) or torch_memory.storage_bytes(tensor) <= _ALIAS_BYTES


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of a replayed forward against those of the step."""

    difference: str = ""
    """In words; "" when none was found."""
    is_finite_again: bool = False
    """Whether that is: non-finite in the step, and finite in the replay."""
    is_complete: bool
    """Whether every output of the step was at hand to be compared."""
    is_finite: bool
    """Whether the replay's outputs are finite."""


def compare_outputs(held: Sequence[HeldOutput], replayed: Sequence[Tensor]) -> OutputCheck:
    """Compare what a forward returned in the step and in the replay. Synchronises.

    Args:
        held: of the step; fewer than `replayed` when not all could be held.
        replayed: what `find_outputs` gives for the replayed forward.
    """
    known = [held_values(output) for output in held] if len(held) == len(replayed) else []
    difference, is_finite = "", not any(classify(tensor) for tensor in replayed)
    for real, again in zip(known, replayed, strict=False):
        if real is not None and not difference:
            difference = _difference(real, again.detach())
    return OutputCheck(
        difference=difference,
        is_complete=len(known) == len(replayed)
        and all(real is not None and is_checkable(real) for real in known),
        is_finite=is_finite,
        is_finite_again=bool(difference)
        and is_finite
        and any(tensor is not None and bool(classify(tensor)) for tensor in known),
    )


def _difference(real: Tensor, again: Tensor) -> str:
    if real.shape != again.shape or real.dtype != again.dtype:
        return f"the replayed forward returns tensors of another shape or type than in the step: {_CAUSE}"
    if not is_checkable(real):
        return ""
    was_finite, is_finite = torch.isfinite(real), torch.isfinite(again)
    if bool((~was_finite & is_finite).any()):
        return f"the replayed forward gives finite outputs where the step's own were not: {_CAUSE}"
    if bool((was_finite & ~is_finite).any()):
        return f"the replayed forward gives non-finite outputs where the step's own were finite: {_CAUSE}"
    if not bool(was_finite.any()) or torch.equal(real[was_finite], again[was_finite]):
        return ""
    apart = (real[was_finite] - again[was_finite]).abs().max()
    if bool(apart > _RELATIVE_TOLERANCE * real[was_finite].abs().max()):
        return f"the replayed forward gives other outputs than the step's own: {_CAUSE}"
    return ""
