"""Finds the tensors in what modules take and return. Pure; runs at every call of a sampled forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.nn import Module, Parameter

from ...compat import torch_memory, torch_modes
from ...compat.torch_memory import local_shard

_MAX_DEPTH: Final = 3
_MAX_FIELDS: Final = 16
"""Looked at in each container: a cache of a thousand keys is no output."""
_MAIN: Final = ("logits", "last_hidden_state")
_SMALL: Final = 16_384


def first_tensor(value: Any, depth: int = 0) -> Tensor | None:
    """Return the first floating-point tensor of a module's output, else None.

    Looks into lists, tuples (`PackedSequence`: its data), mappings (`ModelOutput`) and, one level deep, into
    the attributes of other objects. In a mapping ``logits`` and ``last_hidden_state`` come first: what
    Hugging Face puts before them is the scalar loss.
    """
    if isinstance(value, Tensor):
        return value if value.is_floating_point() or value.is_complex() else None
    return next(tensors_in(value, depth), None)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Yield the floating-point and complex tensors of nested containers, in their order."""
    found = all_tensors_in(value, depth=_MAX_DEPTH - depth, parts=_MAX_FIELDS, first=_MAIN)
    return (tensor for tensor in found if tensor.is_floating_point() or tensor.is_complex())


def all_tensors_in(value: Any, *, depth: int, parts: int, first: Sequence[str] = ()) -> Iterator[Tensor]:
    """Yield the tensors of nested containers and of the attributes of other objects.

    Args:
        value: what a module takes or returns.
        depth: containers in containers that are entered.
        parts: looked at in each container.
        first: keys of mappings whose values come before those of the others.
    """
    if isinstance(value, Tensor):
        yield value
        return
    if depth <= 0 or value is None or isinstance(value, str | bytes | int | float | Module):
        return
    for part in _parts(value, parts, first):
        yield from all_tensors_in(part, depth=depth - 1, parts=parts, first=first)


def _parts(value: Any, most: int, first: Sequence[str]) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value[:most])
    if isinstance(value, Mapping):
        names = [name for name in first if name in value]
        names += [name for name in value if name not in names]
        return [value[name] for name in names[:most]]
    fields = getattr(value, "__dict__", None)
    return list(fields.values())[:most] if isinstance(fields, dict) else []


def is_small(value: Any) -> bool:
    """Whether a module's output, or a gradient, is a tensor that takes microseconds to measure."""
    return isinstance(value, Tensor) and value.numel() <= _SMALL


def measurable(tensor: Tensor) -> Tensor | None:
    """Return the dense tensor whose elements stand for `tensor`: itself, a DTensor's local shard, or None.

    None for sparse, nested, fake, meta and otherwise special tensors and inside `torch.func` transforms.
    """
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        tensor = local_shard(tensor)
        if type(tensor) is not Tensor:
            return None
    is_dense = torch_memory.is_plain_strided(tensor)
    return tensor if is_dense and tensor.numel() and not torch_modes.is_functorch_wrapped(tensor) else None
