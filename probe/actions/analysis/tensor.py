"""`analyze_tensor`: everything about one tensor of any kind. Waits for its device; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ...compat.torch_memory import coo_parts, local_shard
from ...guard import let_pass
from ...measure.statistics.statistics import tensor_statistics
from . import tables
from .call_results import Result

_COO_LAYOUTS: Final = (torch.sparse_coo,)
_COMPRESSED_ROWS: Final = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_COLUMNS: Final = (torch.sparse_csc, torch.sparse_bsc)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport(Result):
    """One tensor: what it is, what it occupies, and statistics of its elements.

    Statistics are over all elements; a NaN or Inf among them propagates as IEEE arithmetic has it, while
    `finite_min` and `finite_max` leave them out. Elements that a sparse tensor does not store count as zeros.
    Complex: `norm` and `max_abs` are of the moduli; real and imaginary parts are separate elements
    for everything else. A DTensor is measured through this rank's shard. None where there is nothing to read.
    """

    _derived = ("ok",)

    name: str
    shape: tuple[int | None, ...]
    """A nested tensor's ragged dimension is None."""
    dtype: str
    device: str
    layout: str
    requires_grad: bool
    elements: int
    bytes: int
    """What the elements (and a sparse tensor's indices) occupy."""
    storage_bytes: int | None
    """The whole allocation behind it, which a view keeps alive; None where there is none."""
    has_nan: bool | None = None
    has_inf: bool | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_fraction: float | None = None
    """Elements that are exactly 0, as a fraction (0-1)."""
    mean: float | None = None
    std: float | None = None
    """Population standard deviation (divisor n)."""
    min: float | None = None
    max: float | None = None
    max_abs: float | None = None
    norm: float | None = None
    """L2 norm of all elements."""
    finite_min: float | None = None
    finite_max: float | None = None
    note: str = ""
    """Why something is missing, or what the numbers are of."""

    @property
    def ok(self) -> bool:
        """Neither NaN nor Inf was found."""
        return not self.has_nan and not self.has_inf

    def __str__(self) -> str:
        """Five lines at most."""
        flags = ", requires_grad" if self.requires_grad else ""
        lines = [
            f"{self.name or 'tensor'}: {tables.shape(self.shape)} {self.dtype} on {self.device}, "
            f"{self.layout}{flags}, {tables.size(self.bytes)}{self._storage_text()}"
        ]
        if self.norm is not None:
            verdict = "finite" if self.ok else f"NaN {self.nan_count}  Inf {self.inf_count}"
            lines.append(f"  {verdict} of {self.elements:,} elements, {self._zero_text()} zero")
            lines.append(
                f"  norm {tables.number(self.norm)}  mean {tables.number(self.mean)}  "
                f"std {tables.number(self.std)}  min {tables.number(self.min)}  max {tables.number(self.max)}"
            )
            if not self.ok and self.finite_min is not None:
                finite = f"{tables.number(self.finite_min)} to {tables.number(self.finite_max)}"
                lines.append(f"  the finite elements are {finite}")
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)

    def _storage_text(self) -> str:
        is_view = self.storage_bytes is not None and self.storage_bytes > 2 * max(self.bytes, 1)
        return f" (a view into {tables.size(self.storage_bytes)})" if is_view else ""

    def _zero_text(self) -> str:
        return "-" if self.zero_fraction is None else f"{self.zero_fraction:.1%}"


@dataclass(frozen=True, slots=True)
class _Range:
    """Smallest and largest element, and how many are 0."""

    low: float
    high: float
    finite: tuple[float, float] | None
    zeros: int


def analyze_tensor(tensor: Tensor, name: str | None = None) -> TensorReport:
    """Describe a tensor of any dtype, layout and device; waits for the device.

    Args:
        tensor: what to look at.
        name: what the report calls it.

    Raises:
        ValueError: it is no tensor.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(
            f"analyze_tensor() takes a torch.Tensor, got {type(tensor).__name__}; "
            "torch.as_tensor(...) makes one of numbers, lists and arrays"
        )
    facts = _Facts(tensor, name)
    local, note = _local(tensor)
    if local.device.type == "meta":
        return facts.report(note="on the meta device: it has a shape and no elements")
    if local.numel() == 0:
        return facts.report(nan_count=0, inf_count=0, has_nan=False, has_inf=False, note=note or "empty")
    try:
        return _measured(facts, local, note)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        # Fake tensors, tensors inside a torch.func transform, sub-byte dtypes: torch has no way to read them.
        let_pass(error)
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return facts.report(note=f"its elements cannot be read: {reason[0][:200]}")


class _Facts:
    """What is known of a tensor without reading an element."""

    def __init__(self, tensor: Tensor, name: str | None) -> None:
        self._tensor = tensor
        self._name = name or ""

    def report(self, **found: object) -> TensorReport:
        tensor = self._tensor
        return TensorReport(
            name=self._name,
            shape=_shape(tensor),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            layout=str(tensor.layout).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
            elements=tensor.numel(),
            bytes=occupied_bytes(tensor),
            storage_bytes=storage_bytes(tensor),
            **found,  # type: ignore[arg-type]
        )


def _shape(tensor: Tensor) -> tuple[int | None, ...]:
    if tensor.is_nested and tensor.layout is torch.strided:
        return (tensor.size(0), *[None] * (tensor.dim() - 1))
    return tuple(length if isinstance(length, int) else None for length in tensor.shape)


def _local(tensor: Tensor) -> tuple[Tensor, str]:
    """This rank's part of a DTensor, with a note that says so; any other tensor as it is."""
    local = local_shard(tensor)
    if local is tensor:
        return tensor, ""
    placements = getattr(tensor, "placements", "?")
    return local, (
        f"a DTensor placed {placements}: the numbers are of this rank's shard, {tables.shape(local.shape)}"
    )


def _measured(facts: _Facts, tensor: Tensor, note: str) -> TensorReport:
    with torch.no_grad():
        plain = _measurable(tensor.detach())
        statistics = tensor_statistics([plain])
        stored = _stored(plain)
        spread = _range(stored, unstored=_element_count(plain) - stored.numel())
    nan_count, inf_count = int(statistics.nan_count[0]), int(statistics.inf_count[0])
    return facts.report(
        has_nan=nan_count > 0,
        has_inf=inf_count > 0,
        nan_count=nan_count,
        inf_count=inf_count,
        zero_fraction=spread.zeros / _element_count(plain),
        mean=float(statistics.mean[0]),
        std=float(statistics.std[0]),
        min=spread.low,
        max=spread.high,
        max_abs=float(statistics.max_abs[0]),
        norm=float(statistics.norm[0]),
        finite_min=spread.finite[0] if spread.finite else None,
        finite_max=spread.finite[1] if spread.finite else None,
        note=note,
    )


def _measurable(tensor: Tensor) -> Tensor:
    """Turn kinds that the measuring functions do not take into ones with the same elements."""
    if tensor.is_nested:
        tensor = torch.cat([part.reshape(-1) for part in tensor.unbind()])
    if tensor.is_mkldnn:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.layout is torch.strided:
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype.is_complex or (tensor.is_floating_point() and tensor.dtype.itemsize >= 2):
        return tensor
    # Integers and booleans; and float8, which has next to no arithmetic of its own.
    return tensor.to(torch.float64)


def _stored(tensor: Tensor) -> Tensor:
    """Return the (n,) real elements that a tensor holds; complex ones as pairs."""
    if tensor.layout is torch.strided:
        values = tensor.reshape(-1)
    elif tensor.layout in _COO_LAYOUTS:
        values = tensor.coalesce().values().reshape(-1)
    else:
        values = tensor.values().reshape(-1)
    return torch.view_as_real(values.resolve_conj()).reshape(-1) if values.is_complex() else values


def _element_count(tensor: Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _range(values: Tensor, *, unstored: int) -> _Range:
    zeros = unstored + int((values == 0).sum())
    if not values.numel():
        return _Range(0.0, 0.0, (0.0, 0.0), zeros)
    low, high = (float(extreme) for extreme in torch.aminmax(values))
    finite: tuple[float, float] | None = (low, high)
    if not (np.isfinite(low) and np.isfinite(high)):
        kept = values[values.isfinite()]
        finite = (float(kept.min()), float(kept.max())) if kept.numel() else None
    if unstored:
        low, high = float(np.minimum(low, 0.0)), float(np.maximum(high, 0.0))
        finite = (min(finite[0], 0.0), max(finite[1], 0.0)) if finite else (0.0, 0.0)
    return _Range(low, high, finite, zeros)


def occupied_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements on this rank, a sparse one's indices included; reads no element."""
    tensor = local_shard(tensor)
    if tensor.layout in _COO_LAYOUTS:
        parts = [*coo_parts(tensor)]
    elif tensor.layout in _COMPRESSED_ROWS:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in _COMPRESSED_COLUMNS:
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    else:
        elements = tensor.numel() * tensor.element_size()
        # An expanded tensor has more elements than memory.
        return min(elements, storage_bytes(tensor) or elements)
    return sum(part.numel() * part.element_size() for part in parts)


def storage_bytes(tensor: Tensor) -> int | None:
    """Bytes of the allocation that a tensor keeps alive; None for kinds without one of their own."""
    tensor = local_shard(tensor)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    try:
        return tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        let_pass(error)
        return None
