"""Statistics of many tensors at once: tensors in, float64 numpy arrays out; on the training thread, pure.

Three ways, chosen per tensor: small dense CPU tensors are concatenated and reduced by segment in numpy
(float64); large CPU tensors and all CUDA tensors use torch reductions whose results reach the host in one
copy per device; everything else (sparse, complex, quantised, subclasses) is measured one by one in float64.
Nothing here draws random numbers, changes a tensor or leaves a gradient graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]

_SMALL_ELEMENTS = 16_384
"""Up to this size copying into a flat buffer is cheaper than a torch call each (see bench_statistics)."""
_CANCELLATION = 1e-3
"""Below this ratio of variance to mean square, float32 sums no longer carry the variance: use float64."""
_SAFE_NORM = (1e-15, 1e15)
"""Outside, float32 squares may have overflowed or vanished: use float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistics:
    """Statistics of a list of tensors; every array is (tensors,) float64 in the list's order.

    Of a tensor that is None or has no elements: `missing` is True and the rest 0. NaN and Inf elements
    propagate into `norm`, `max_abs`, `mean` and `std` as IEEE arithmetic has it.
    """

    norm: Floats
    """L2 norm."""
    max_abs: Floats
    """Largest absolute element."""
    mean: Floats
    std: Floats
    """Population standard deviation (divisor n)."""
    nan_count: Floats
    inf_count: Floats
    missing: npt.NDArray[np.bool_]

    @property
    def total_norm(self) -> float | None:
        """Global L2 norm over all tensors; None when every one is missing."""
        if bool(self.missing.all()):
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sqrt(np.sum(np.square(self.norm[~self.missing]))))


def tensor_statistics(tensors: Sequence[Tensor | None]) -> TensorStatistics:
    """Measure all tensors; None entries are reported as missing.

    Complex tensors are measured through absolute values (norm, max_abs) and their real and imaginary parts
    as separate elements (mean, std, counts). A DTensor is measured through its local shard.
    Waits for the device: one host copy per device, plus one for each tensor that needs the exact way.
    """
    result = _empty(len(tensors))
    small: list[tuple[int, Tensor]] = []
    large: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    unusual: list[tuple[int, Tensor]] = []
    for index, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if type(tensor) is not Tensor and hasattr(tensor, "_local_tensor"):
            tensor = tensor._local_tensor
        if tensor.layout is not torch.strided or not tensor.is_floating_point():
            unusual.append((index, tensor))
        elif tensor.numel() == 0:
            continue
        elif tensor.device.type == "cpu" and tensor.numel() <= _SMALL_ELEMENTS:
            small.append((index, tensor))
        elif tensor.device.type == "meta":
            continue
        else:
            wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
            large.setdefault((tensor.device, wide), []).append((index, tensor))
    with torch.no_grad(), np.errstate(all="ignore"):
        if small:
            _measure_small(result, small)
        for (_, accumulator), entries in large.items():
            _measure_large(result, entries, accumulator)
        for index, tensor in unusual:
            _measure_exactly(result, index, tensor)
    return result


def tensor_norms(tensors: Sequence[Tensor]) -> Floats:
    """Return the (tensors,) L2 norms only; same ways and precision as `tensor_statistics`."""
    return tensor_statistics(tensors).norm


def _empty(count: int) -> TensorStatistics:
    arrays = {field.name: np.zeros(count) for field in fields(TensorStatistics) if field.name != "missing"}
    return TensorStatistics(**arrays, missing=np.ones(count, dtype=np.bool_))


def _measure_small(result: TensorStatistics, entries: list[tuple[int, Tensor]]) -> None:
    """Concatenate and reduce by segment, in float64."""
    at = np.fromiter((index for index, _ in entries), dtype=np.intp, count=len(entries))
    sizes = np.fromiter((tensor.numel() for _, tensor in entries), dtype=np.intp, count=len(entries))
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    # cat promotes mixed dtypes and copies, so that the caller's storage is never aliased.
    flat = torch.cat([tensor.detach().ravel() for _, tensor in entries]).double().numpy()
    mean = np.add.reduceat(flat, starts) / sizes
    mean_square = np.add.reduceat(np.square(flat), starts) / sizes
    result.max_abs[at] = np.maximum.reduceat(np.abs(flat), starts)
    result.norm[at] = np.sqrt(mean_square * sizes)
    result.mean[at] = mean
    result.std[at] = np.sqrt(np.maximum(mean_square - np.square(mean), 0.0))
    result.missing[at] = False
    # np.maximum keeps NaN, so that std of non-finite data stays NaN; squares of huge float64 may overflow.
    doubtful = ~np.isfinite(result.norm[at]) | (result.std[at] ** 2 < 1e-12 * mean_square)
    doubtful |= (result.norm[at] < 1e-140) & (result.max_abs[at] > 0)
    for position in np.flatnonzero(doubtful):
        _measure_exactly(result, *entries[position])


def _measure_large(
    result: TensorStatistics, entries: list[tuple[int, Tensor]], accumulator: torch.dtype
) -> None:
    """Reduce each tensor with torch; one copy brings all results to the host."""
    tensors = [tensor.detach() for _, tensor in entries]
    extremes = [torch.aminmax(tensor) for tensor in tensors]
    rows = [
        *torch._foreach_norm(tensors, 2, accumulator),
        *(extreme.min for extreme in extremes),
        *(extreme.max for extreme in extremes),
        *(tensor.sum(dtype=accumulator) for tensor in tensors),
    ]
    host = torch.stack([row.to(accumulator) for row in rows]).cpu().double().numpy().reshape(4, len(entries))
    at = np.fromiter((index for index, _ in entries), dtype=np.intp, count=len(entries))
    sizes = np.fromiter((tensor.numel() for tensor in tensors), dtype=np.float64, count=len(entries))
    norm, mean = host[0], host[3] / sizes
    variance = np.square(norm) / sizes - np.square(mean)
    result.norm[at], result.mean[at] = norm, mean
    result.max_abs[at] = np.maximum(np.abs(host[1]), np.abs(host[2]))
    result.std[at] = np.sqrt(np.maximum(variance, 0.0))
    result.missing[at] = False
    doubtful = ~np.isfinite(norm) | ((norm != 0) & (variance < _CANCELLATION * np.square(norm) / sizes))
    doubtful |= (norm != 0) & ((norm < _SAFE_NORM[0]) | (norm > _SAFE_NORM[1]))
    doubtful |= (norm == 0) & (result.max_abs[at] != 0)
    for position in np.flatnonzero(doubtful):
        _measure_exactly(result, *entries[position])


def _measure_exactly(result: TensorStatistics, index: int, tensor: Tensor) -> None:
    """Measure one tensor of any kind in float64, scaled so that no square overflows or vanishes."""
    tensor = tensor.detach()
    stored = _stored_elements(tensor)
    absolute = stored.abs().double()
    values = (
        (torch.view_as_real(stored.resolve_conj()) if stored.is_complex() else stored).double().reshape(-1)
    )
    elements = tensor.numel() * (2 if stored.is_complex() else 1)
    if elements == 0:
        return
    result.missing[index] = False
    result.nan_count[index] = float(values.isnan().sum())
    result.inf_count[index] = float(values.isinf().sum())
    largest = float(absolute.max()) if absolute.numel() else 0.0
    scale = largest if 0 < largest < np.inf else 1.0
    scaled = values / scale
    mean = float(scaled.sum()) / elements
    # A sparse tensor's unstored elements are zeros of the dense one.
    unstored = elements - values.numel()
    variance = (float(torch.sum(torch.square(scaled - mean))) + unstored * mean**2) / elements
    result.max_abs[index] = largest
    result.norm[index] = float(torch.linalg.vector_norm(scaled)) * scale
    result.mean[index] = mean * scale
    result.std[index] = np.sqrt(variance) * scale


def _stored_elements(tensor: Tensor) -> Tensor:
    """Return the (n,) elements that a tensor really holds: all of a dense one, the values of a sparse one."""
    if tensor.layout is torch.strided:
        return tensor.dequantize().reshape(-1) if tensor.is_quantized else tensor.reshape(-1)
    values = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.reshape(-1)
