"""What a tensor holds: its non-finite kinds and a summary of its values in words. Pure, on any device.

Called inside the dispatch modes of a replay, where autograd does not record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from ..compat import torch_memory
from ..compat.torch_memory import coo_parts
from .nonfinite_kinds import Kinds

_NARROW: Final = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)


def is_checkable(tensor: Tensor) -> bool:
    """Whether the tensor can hold NaN or Inf in a form that can be tested: dense, not empty, not float8."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.dtype not in _NARROW
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        # Zeros that autograd makes up have no memory: in a dispatch mode, reading them kills the process.
        and not torch_memory.is_made_up_zero(tensor)
    )


def zero_if_finite(tensor: Tensor) -> Tensor:
    """Return a float32 scalar on the tensor's device: 0 when all is finite, else NaN. No synchronisation.

    `(x * 0).sum()` cannot overflow: each product is 0 or NaN.
    """
    zero = (tensor * 0).sum()
    return (zero.real + zero.imag if zero.is_complex() else zero).to(torch.float32)


def classify(tensor: Tensor) -> Kinds:
    """Return the non-finite kinds in a tensor; none for what cannot be tested. Synchronises."""
    values = _dense(tensor)
    if values is None or zero_if_finite(values).item() == 0.0:
        return Kinds.NONE
    kinds = Kinds.NONE
    if bool(torch.isnan(values).any()):
        kinds |= Kinds.NAN
    if bool((values == math.inf).any()):
        kinds |= Kinds.POSITIVE_INFINITY
    if bool((values == -math.inf).any()):
        kinds |= Kinds.NEGATIVE_INFINITY
    return kinds


def summarise(tensor: Tensor) -> str:
    """Return one line such as ``float32 [32, 64], 0 to 3.2, 12 zeros``. Synchronises."""
    head = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    values = _dense(tensor)
    if values is None:
        return head
    finite = values[torch.isfinite(values)]
    parts = [head]
    if finite.numel():
        parts.append(f"{finite.min().item():.6g} to {finite.max().item():.6g}")
    counts = {
        "zeros": (values == 0).sum(),
        "NaN": torch.isnan(values).sum(),
        "+Inf": (values == math.inf).sum(),
        "-Inf": (values == -math.inf).sum(),
    }
    parts += [f"{int(count)} {name}" for name, count in counts.items() if int(count)]
    return ", ".join(parts)


def has_nonfinite_constant(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a Python number among the arguments, lists included, is NaN or infinite."""
    return any(_is_nonfinite_number(value) for value in (*args, *kwargs.values()))


def _is_nonfinite_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, list | tuple) and any(_is_nonfinite_number(item) for item in value)


def _dense(tensor: Tensor) -> Tensor | None:
    """The testable real values of a tensor; None where there are none."""
    if tensor.layout == torch.sparse_coo:
        tensor = coo_parts(tensor)[1]
    if not is_checkable(tensor):
        return None
    # A Python number that an op has kept is a scalar that compares in float32, whatever its type.
    values = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
