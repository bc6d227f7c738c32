"""Rows of a batch in nested containers: how many there are, some of them, and results of parts joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..actions.recovery.tensor_conditions import map_tensors


def first_dimension(value: Any) -> int:
    """Return the size that the first dimension of every tensor has.

    Raises:
        ValueError: there is no tensor, or they have different ones.
    """
    sizes: set[int] = set()

    def note(name: str, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            raise ValueError("split_batch=True needs tensors with rows; one has no dimension")
        sizes.add(tensor.size(0))
        return tensor

    map_tensors(value, "inputs", note, most=None)
    if len(sizes) != 1:
        found = ", ".join(map(str, sorted(sizes))) or "no tensor"
        raise ValueError(f"split_batch=True needs the same first dimension in all tensors, found {found}")
    return sizes.pop()


def rows_of(value: Any, start: int, stop: int) -> Any:
    """Return the containers with rows `[start, stop)` of every tensor, as views."""
    return map_tensors(value, "inputs", lambda _, tensor: tensor[start:stop], most=None)


def joined(parts: Sequence[tuple[Any, int]]) -> Any:
    """Join the results of successive parts of a batch along their first dimension.

    Args:
        parts: (result, number of rows) of each.

    Raises:
        ValueError: a result has something that is not there once for each row.
    """
    results = [result for result, _ in parts]
    first = results[0]
    if isinstance(first, Tensor):
        if any(not result.dim() or result.size(0) != rows for result, rows in parts):
            shapes = [tuple(result.shape) for result in results]
            raise ValueError(f"split_batch=True: results {shapes} do not have one row for each of the input")
        return torch.cat(results)
    if isinstance(first, Mapping):
        items = {key: joined([(result[key], rows) for result, rows in parts]) for key in first}
        return items if type(first) is dict else type(first)(**items)
    if isinstance(first, list | tuple):
        columns = [joined([(result[index], rows) for result, rows in parts]) for index in range(len(first))]
        if hasattr(first, "_make"):
            return first._make(columns)
        return columns if isinstance(first, list) else tuple(columns)
    if any(result != first for result in results[1:]):
        kind = type(first).__name__
        raise ValueError(f"split_batch=True: the parts return different values of type {kind}")
    return first
