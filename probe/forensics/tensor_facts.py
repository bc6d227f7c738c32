"""What a tensor holds: its non-finite kinds and a summary of its values in words. Pure, on any device.

Called inside the dispatch modes of a replay, where autograd does not record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from ..compat import torch_memory
from ..compat.torch_memory import coo_parts
from ..compat.torch_modes import without_subclass_code
from ..wire import TensorFacts
from .nonfinite_kinds import Kinds

_CHUNK: Final = 2**20
"""Elements that are brought to float64 at a time."""
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


def facts_of(tensor: Tensor, *, role: str, name: str, with_values: bool = True) -> TensorFacts:
    """Describe a tensor for an event: float64 statistics over all elements, a chunk at a time.

    Synchronises where `with_values`. What cannot be read has None in the place of its numbers.

    Args:
        tensor: of any kind; a lazy or nested one has the shape that is known.
        role: what it is to the event.
        name: how the event calls it.
        with_values: whether elements may be read.
    """
    with without_subclass_code():
        shape = [] if tensor.is_nested else [n for n in tensor.shape if isinstance(n, int)]
        dtype = str(tensor.dtype).removeprefix("torch.")
        facts = TensorFacts(role=role, name=name, shape=shape, dtype=dtype, device=str(tensor.device))
    values = _readable(tensor) if with_values else None
    if values is None:
        return facts
    unstored = tensor.numel() * (2 if tensor.is_complex() else 1) - values.numel()
    return msgspec.structs.replace(facts, **_numbers(values, unstored=max(unstored, 0)))


def _readable(tensor: Tensor) -> Tensor | None:
    """The stored real elements in one dimension; None of what cannot be read."""
    values = _dense(tensor)
    if values is None and not (tensor.is_floating_point() or tensor.is_complex()) and _is_plain(tensor):
        values = tensor.detach()
    return None if values is None else values.reshape(-1)


def _numbers(values: Tensor, *, unstored: int) -> dict[str, Any]:
    """The numbers of `TensorFacts`; elements that a sparse tensor does not store are zeros."""
    moments = _Moments()
    # Apple's GPUs have no float64.
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    for start in range(0, values.numel(), _CHUNK):
        moments.add(values[start : start + _CHUNK].to(wide))
    if unstored:
        moments.add_zeros(unstored)
    return moments.result()


class _Moments:
    """Count, mean and squared deviations of finite elements, put together from parts (Chan et al. 1979)."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._low, self._high = math.inf, -math.inf
        self._nan = self._positive = self._negative = self._zero = 0

    def add(self, chunk: Tensor) -> None:
        """Take some elements. Synchronises."""
        finite = chunk[torch.isfinite(chunk)]
        if finite.numel() < chunk.numel():
            self._nan += int(torch.isnan(chunk).sum())
            self._positive += int((chunk == math.inf).sum())
            self._negative += int((chunk == -math.inf).sum())
        if finite.numel():
            mean = float(finite.mean())
            self._zero += int((finite == 0).sum())
            self._low, self._high = (
                min(self._low, float(finite.min())),
                max(self._high, float(finite.max())),
            )
            self._merge(finite.numel(), mean, float((finite - mean).square().sum()))

    def add_zeros(self, count: int) -> None:
        """Take so many zeros."""
        self._zero += count
        self._low, self._high = min(self._low, 0.0), max(self._high, 0.0)
        self._merge(count, 0.0, 0.0)

    def _merge(self, count: int, mean: float, squares: float) -> None:
        total, apart = self._count + count, mean - self._mean
        self._squares += squares + apart * apart * self._count * count / total
        self._mean += apart * count / total
        self._count = total

    def result(self) -> dict[str, Any]:
        counts = {"nan": self._nan, "inf": self._positive + self._negative, "zero": self._zero}
        finite = (self._low, self._high) if self._count else (None, None)
        found: dict[str, Any] = {**counts, "finite_min": finite[0], "finite_max": finite[1]}
        if self._nan:
            return {**found, **dict.fromkeys(("min", "max", "mean", "std"), math.nan)}
        if self._positive or self._negative:
            found["min"] = -math.inf if self._negative else (math.inf if finite[0] is None else finite[0])
            found["max"] = math.inf if self._positive else (-math.inf if finite[1] is None else finite[1])
            infinite = math.inf if self._positive else -math.inf
            found["mean"] = math.nan if self._positive and self._negative else infinite
            return {**found, "std": math.nan}
        if not self._count:
            return {**counts}
        spread = math.sqrt(self._squares / self._count)
        return {**found, "min": finite[0], "max": finite[1], "mean": self._mean, "std": spread}


def facts_line(facts: TensorFacts) -> str:
    """One line such as ``input 0: float32 [32, 64], 0 to 3.2, 12 zeros``."""
    parts = [f"{facts.role} {facts.name}: {facts.dtype} {list(facts.shape)}"]
    if facts.finite_min is not None and facts.finite_max is not None:
        parts.append(f"{facts.finite_min:.6g} to {facts.finite_max:.6g}")
    counts = {"zeros": facts.zero, "NaN": facts.nan, "Inf": facts.inf}
    parts += [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(parts)


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


def _is_plain(tensor: Tensor) -> bool:
    """Whether the elements of a tensor of whole numbers can be read as they lie there."""
    return (
        tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_quantized)
        and tensor.device.type != "meta"
        and not torch_memory.is_made_up_zero(tensor)
    )


def _dense(tensor: Tensor) -> Tensor | None:
    """The testable real values of a tensor; None where there are none."""
    if tensor.layout == torch.sparse_coo:
        tensor = coo_parts(tensor)[1]
    if not is_checkable(tensor):
        return None
    # A Python number that an op has kept is a scalar that compares in float32, whatever its type.
    values = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
