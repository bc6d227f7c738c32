"""Whether a replay is the step that it claims to be: replayed gradients against the real ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from .tensor_facts import is_checkable

Fidelity: TypeAlias = Literal["exact", "confirmed", "could not reproduce", "declined"]

_RELATIVE_TOLERANCE: Final = 1e-2
"""Of the largest gradient element: bf16 sums in another order differ by so much (8 mantissa bits)."""


def compare_gradients(real: Mapping[str, Tensor | None], replayed: Mapping[str, Tensor | None]) -> Fidelity:
    """Compare the gradients of a step with those of its replay, by parameter name. Synchronises.

    Returns:
        "exact": every element equal, NaN where NaN; "confirmed": the same elements are NaN and infinite,
        or, where all is finite, the values agree up to one common scalar (loss scaling), or there are no
        gradients to compare; else "could not reproduce".
    """
    pairs = [(_values(real[name]), _values(replayed.get(name))) for name in real]
    present = [(a, b) for a, b in pairs if a is not None and b is not None]
    # A parameter whose gradient is missing on one side only: zero stands for absent.
    lone = [a if a is not None else b for a, b in pairs if (a is None) != (b is None)]
    lonely_is_zero = all(bool((tensor == 0).all()) for tensor in lone if tensor is not None)
    if any(a.shape != b.shape for a, b in present) or not lonely_is_zero:
        return "could not reproduce"
    if not present:
        return "confirmed"
    if all(_equal(a, b) for a, b in present):
        return "exact"
    if not all(_same_pattern(a, b) for a, b in present):
        return "could not reproduce"
    has_bad = any(not bool(torch.isfinite(a).all()) for a, _ in present)
    return "confirmed" if has_bad or _proportional(present) else "could not reproduce"


def _values(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce().to_dense()
    return tensor.detach()


def _equal(a: Tensor, b: Tensor) -> bool:
    same = a == b
    if is_checkable(a):
        same = same | (torch.isnan(a) & torch.isnan(b))
    return bool(same.all())


def _same_pattern(a: Tensor, b: Tensor) -> bool:
    return bool((torch.isnan(a) == torch.isnan(b)).all() and (torch.isinf(a) == torch.isinf(b)).all())


def _proportional(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether one factor turns all of the second tensors into the first, within the tolerance."""
    squares = sum(float((b.double() * b.double()).sum()) for _, b in pairs)
    products = sum(float((a.double() * b.double()).sum()) for a, b in pairs)
    if squares == 0.0:
        return False
    factor = products / squares
    largest = max(float(a.abs().max()) if a.numel() else 0.0 for a, _ in pairs)
    return factor > 0 and all(
        bool(((a.double() - factor * b.double()).abs() <= _RELATIVE_TOLERANCE * largest).all())
        for a, b in pairs
    )
