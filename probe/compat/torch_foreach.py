"""Torch's functions over lists of tensors, one kernel for many; without them, a tensor at a time.

Each takes a list of tensors, then what the operation takes besides: one value for all, or a list of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Foreach: TypeAlias = Callable[..., Any]


def available() -> dict[str, bool]:
    """Return which of the private symbols here this torch has."""
    names = ("norm", "sqrt", "div", "div_", "add_", "sub_", "mul_", "copy_")
    return {f"torch._foreach_{name}": hasattr(torch, f"_foreach_{name}") for name in names}


def one_by_one(operation: Callable[..., Tensor]) -> Foreach:
    """Make of an operation on one tensor what does it on a list."""

    def each(tensors: list[Tensor], *others: Any) -> list[Tensor]:
        lists = [other if isinstance(other, list | tuple) else itertools.repeat(other) for other in others]
        return [operation(*row) for row in zip(tensors, *lists, strict=False)]

    return each


def norm_of(tensor: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    """Return the norm of one tensor, computed and returned in `dtype`."""
    norm: Tensor = torch.linalg.vector_norm(tensor, order, dtype=dtype)
    return norm


foreach_norm: Foreach = getattr(torch, "_foreach_norm", None) or one_by_one(norm_of)
foreach_sqrt: Foreach = getattr(torch, "_foreach_sqrt", None) or one_by_one(torch.sqrt)
foreach_div: Foreach = getattr(torch, "_foreach_div", None) or one_by_one(torch.div)
foreach_div_: Foreach = getattr(torch, "_foreach_div_", None) or one_by_one(Tensor.div_)
foreach_add_: Foreach = getattr(torch, "_foreach_add_", None) or one_by_one(Tensor.add_)
foreach_sub_: Foreach = getattr(torch, "_foreach_sub_", None) or one_by_one(Tensor.sub_)
foreach_mul_: Foreach = getattr(torch, "_foreach_mul_", None) or one_by_one(Tensor.mul_)
foreach_copy_: Foreach = getattr(torch, "_foreach_copy_", None) or one_by_one(Tensor.copy_)
