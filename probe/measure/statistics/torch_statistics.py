"""Statistics by torch and numpy alone: for devices, unusual tensors, and where there is no native kernel.

Three ways, chosen per tensor: small dense CPU tensors are concatenated and reduced by segment in numpy
(float64); large CPU tensors use torch reductions, and CUDA tensors one pass over all (`device_pass`) where
there is one, and the results reach the host in one copy per device; everything else (sparse, complex,
quantised, subclasses) is measured one by one in float64. Called by `statistics`; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Parameter

from ...compat import torch_memory
from ...compat.host_copy import HostCopy, allowed_to_wait
from ...compat.torch_foreach import foreach_norm
from ...compat.torch_memory import local_shard
from ..kernels import device_pass

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_Group: TypeAlias = tuple[torch.device, torch.dtype]

NORM, MAX_ABS, MEAN, STD, NAN_COUNT, INF_COUNT, ROWS = range(7)
"""Rows of a block of statistics, and their number."""

_SMALL_ELEMENTS = 16_384
"""Up to this size copying into a flat buffer is cheaper than a torch call each (see bench_statistics)."""
_CHUNK_ELEMENTS = 32_768
_CANCELLATION = 1e-3
"""Below this ratio of variance to mean square, float32 sums no longer carry the variance: use float64."""
_SAFE_RMS, _SAFE_NORM = 1e-15, 1e15
"""Below or above, float32 squares may have vanished or overflowed: use float64."""


class _Chunk(msgspec.Struct, frozen=True):
    """Tensors that make one flat buffer: their indices, sizes and offsets in it, each (tensors,)."""

    at: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]


class TorchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which way each tensor of a list is measured. Holds as long as kinds and sizes stay the same."""

    count: int
    chunks: tuple[_Chunk, ...]
    """Small tensors that are concatenated and reduced together."""
    large: tuple[tuple[_Group, tuple[int, ...]], ...]
    """One entry for each device and accumulator, with the indices."""
    unusual: tuple[int, ...]
    absent: bool
    """Whether some entries are None, empty or without data."""
    kinds: tuple[list[int], list[torch.dtype]]
    """Number of the device (-1: the host) and dtype of each; empty where some have none."""

    def fits(self, tensors: Sequence[Tensor | None]) -> bool:
        """Whether gradients of the planned parameters can be measured by this plan: all there and dense."""
        if self.absent or self.unusual or len(tensors) != self.count:
            return False
        if not set(map(type, tensors)) <= {Tensor, Parameter}:
            return False
        present = cast(Sequence[Tensor], tensors)
        if {tensor.layout for tensor in present} != {torch.strided}:
            return False
        if _kinds_of(present) == self.kinds:
            return True
        # A script may convert or move parameters in mid-run (`model.to`).
        if any(_group(present[index]) != group for group, indices in self.large for index in indices):
            return False
        ends = (present[index] for chunk in self.chunks for index in (chunk.at[0], chunk.at[-1]))
        return all(tensor.is_cpu for tensor in ends)


def plan_by_torch(tensors: Sequence[Tensor | None]) -> TorchPlan:
    """Sort tensors by the way that they are measured; for parameters, the plan serves their gradients too."""
    small: list[int] = []
    large: dict[_Group, list[int]] = {}
    unusual: list[int] = []
    for index, tensor in enumerate(tensors):
        if tensor is None or tensor.device.type == "meta" or tensor.numel() == 0:
            continue
        if type(tensor) not in (Tensor, Parameter) or not _is_plain(tensor):
            unusual.append(index)
        elif tensor.device.type == "cpu" and tensor.numel() <= _SMALL_ELEMENTS:
            small.append(index)
        else:
            large.setdefault(_group(tensor), []).append(index)
    sizes = [cast(Tensor, tensors[index]).numel() for index in small]
    planned = len(small) + len(unusual) + sum(map(len, large.values()))
    return TorchPlan(
        count=len(tensors),
        chunks=tuple(_cut_into_chunks(small, sizes)),
        large=tuple((group, tuple(indices)) for group, indices in large.items()),
        unusual=tuple(unusual),
        absent=planned < len(tensors),
        kinds=_kinds_of([t for t in tensors if t is not None]) if planned == len(tensors) else ([], []),
    )


Summary: TypeAlias = tuple[Floats, Flags, bool, float | None]
"""(ROWS, tensors) block, (tensors,) missing, whether all elements are finite, total norm."""


def measure_by_torch(tensors: Sequence[Tensor | None], plan: TorchPlan) -> Summary:
    """Measure all tensors; of a missing one the column is 0.

    Waits for the device: one host copy per device, plus one for each tensor that needs the exact way.

    Args:
        tensors: what to measure; a DTensor is measured as its class has it, so unwrap it before.
        plan: one that fits.
    """
    present = cast(Sequence[Tensor], tensors)
    block, missing = np.zeros((ROWS, len(tensors))), np.ones(len(tensors), dtype=np.bool_)
    with torch.no_grad(), np.errstate(all="ignore"), allowed_to_wait():
        if not all(_measure_chunk(block, missing, present, chunk) for chunk in plan.chunks):
            return measure_by_torch(tensors, plan_by_torch(tensors))
        for (_, accumulator), indices in plan.large:
            _measure_large(block, missing, [(index, present[index]) for index in indices], accumulator)
        for index in plan.unusual:
            _measure_exactly(block, missing, index, present[index])
    return summarise(block, missing)


def summarise(block: Floats, missing: Flags) -> Summary:
    """Add what is known of all tensors together."""
    is_finite = not block[NAN_COUNT:].any()
    total = None if bool(missing.all()) else _length(block[NORM])
    return block, missing, is_finite, total


def _length(norms: Floats) -> float:
    """L2 norm of a vector of norms, without overflow."""
    largest = float(np.max(norms))
    if not 0 < largest < np.inf:
        return largest
    return float(np.linalg.norm(norms / largest)) * largest


def dense_elements(tensor: Tensor) -> Tensor:
    """Return all elements as an (n,) tensor of reals; of a DTensor those here, of a sparse one all."""
    tensor = local_shard(tensor).detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def _group(tensor: Tensor) -> _Group:
    """Large tensors of one device and accumulator are measured together."""
    return tensor.device, torch.float64 if tensor.dtype is torch.float64 else torch.float32


def _kinds_of(tensors: Sequence[Tensor]) -> tuple[list[int], list[torch.dtype]]:
    return [tensor.get_device() for tensor in tensors], [tensor.dtype for tensor in tensors]


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_floating_point()


def _cut_into_chunks(indices: list[int], sizes: list[int]) -> Iterator[_Chunk]:
    """Group tensors, in order, so that a group's float64 copy stays in the processor's cache."""
    begin, elements = 0, 0
    for position, size in enumerate([*sizes, _CHUNK_ELEMENTS + 1]):
        if elements + size > _CHUNK_ELEMENTS and position > begin:
            chosen = np.array(sizes[begin:position], dtype=np.intp)
            yield _Chunk(np.array(indices[begin:position]), chosen, np.cumsum(chosen) - chosen)
            begin, elements = position, 0
        elements += size


def _measure_chunk(block: Floats, missing: Flags, tensors: Sequence[Tensor], chunk: _Chunk) -> bool:
    """Concatenate and reduce by segment, in float64; False when the sizes are no longer the planned ones."""
    at, sizes, starts = chunk.at, chunk.sizes, chunk.starts
    chosen = [tensors[index] for index in at]
    joined = torch_memory.concatenate(chosen)
    if joined.numel() != int(sizes.sum()) or joined.is_complex():
        return False
    flat = joined.double().numpy()
    mean = np.add.reduceat(flat, starts) / sizes
    # flat is our own copy: it is overwritten to save an allocation.
    max_abs = np.maximum.reduceat(np.abs(flat, out=flat), starts)
    mean_square = np.add.reduceat(np.square(flat, out=flat), starts) / sizes
    norm = np.sqrt(mean_square * sizes)
    block[NORM, at], block[MAX_ABS, at], block[MEAN, at] = norm, max_abs, mean
    block[STD, at] = np.sqrt(np.maximum(mean_square - np.square(mean), 0.0))
    missing[at] = False
    # Counts are wanted where something is not finite; squares of extreme float64 overflow or vanish.
    doubtful = ~np.isfinite(norm) | ((norm < 1e-140) & (max_abs > 0))
    for position in np.flatnonzero(doubtful):
        _measure_exactly(block, missing, int(at[position]), chosen[int(position)])
    return True


def _measure_large(
    block: Floats, missing: Flags, entries: list[tuple[int, Tensor]], accumulator: torch.dtype
) -> None:
    """Reduce each tensor with torch, or all in one pass; one copy brings all results to the host."""
    tensors = [tensor for _, tensor in entries]
    found = _reduced(tensors, accumulator).cpu().double().numpy()
    at = np.fromiter((index for index, _ in entries), dtype=np.intp, count=len(entries))
    sizes = np.fromiter((tensor.numel() for tensor in tensors), dtype=np.float64, count=len(entries))
    norm = found[0]
    if _fill(block, missing, found, at, sizes):
        # In float64, but its squares may have overflowed.
        doubtful = np.isinf(norm) & (found[3] + found[4] == 0)
    else:
        square = np.square(norm) / sizes
        doubtful = ~np.isfinite(norm) | ((norm != 0) & (np.square(block[STD, at]) < _CANCELLATION * square))
        doubtful |= (norm != 0) & ((norm < _SAFE_RMS * np.sqrt(sizes)) | (norm > _SAFE_NORM))
    doubtful |= (norm == 0) & (block[MAX_ABS, at] != 0)
    for position in np.flatnonzero(doubtful):
        _measure_exactly(block, missing, *entries[position])


def _fill(block: Floats, missing: Flags, found: Floats, at: npt.NDArray[np.intp], sizes: Floats) -> bool:
    """Put what `_reduced` has found in its columns; whether NaN and Inf elements were counted, too."""
    norm, largest, total = found[:3]
    mean = total / sizes
    block[NORM, at], block[MEAN, at] = norm, mean
    # Torch's largest element passes over a NaN on some devices.
    block[MAX_ABS, at] = np.where(np.isnan(norm), np.nan, largest)
    block[STD, at] = np.sqrt(np.maximum(np.square(norm) / sizes - np.square(mean), 0.0))
    missing[at] = False
    is_counted = len(found) == device_pass.VALUES
    if is_counted:
        block[NAN_COUNT, at], block[INF_COUNT, at] = found[3:5]
    return is_counted


def _reduced(tensors: list[Tensor], accumulator: torch.dtype) -> Tensor:
    """Return (3, tensors) on the tensors' device: L2 norm, largest absolute element, sum.

    In one pass, where a device has it, with the further rows of `device_pass.VALUES`.
    """
    found = device_pass.measure_in_one_pass(tensors)
    if found is not None:
        return found
    tensors = [tensor.detach() for tensor in tensors]
    rows = [
        *foreach_norm(tensors, 2, accumulator),
        *foreach_norm(tensors, math.inf, accumulator),
        *(tensor.sum(dtype=accumulator) for tensor in tensors),
    ]
    return torch.stack(rows).reshape(3, len(tensors))


def start_by_torch(
    tensors: Sequence[Tensor | None], plan: TorchPlan
) -> Callable[[], tuple[Summary, bool]] | None:
    """Start measuring on the tensors' devices without waiting for them; what is returned reads the results.

    All sums are float64: nothing can be measured a second time once the tensors are gone. Where torch's own
    functions measure, NaN and Inf elements are told by `max_abs` alone, and not counted.

    Args:
        tensors: what to measure, local shards only; may be changed or freed as soon as this returns.
        plan: one that fits.

    Returns:
        What gives them, and whether NaN and Inf elements were counted. None where some tensors can be
        measured by waiting only: small ones on the CPU, sparse, complex.
    """
    if plan.chunks or plan.unusual:
        return None
    present = cast(Sequence[Tensor], tensors)
    started: list[tuple[npt.NDArray[np.intp], Floats, HostCopy]] = []
    with torch.no_grad():
        for _, indices in plan.large:
            chosen = [present[index] for index in indices]
            sizes = np.array([tensor.numel() for tensor in chosen], dtype=np.float64)
            started.append((np.array(indices), sizes, HostCopy(_reduced(chosen, torch.float64))))
    return lambda: _read_started(len(tensors), started)


def _read_started(
    count: int, started: Sequence[tuple[npt.NDArray[np.intp], Floats, HostCopy]]
) -> tuple[Summary, bool]:
    """Wait for what was started, and make the block of it."""
    block, missing = np.zeros((ROWS, count)), np.ones(count, dtype=np.bool_)
    is_counted = True
    with np.errstate(all="ignore"):
        for at, sizes, copy in started:
            is_counted &= _fill(block, missing, copy.read().numpy(), at, sizes)
        _, _, _, total_norm = summarise(block, missing)
    return (block, missing, bool(np.isfinite(block[MAX_ABS]).all()), total_norm), is_counted


def _measure_exactly(block: Floats, missing: Flags, index: int, tensor: Tensor) -> None:
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
    missing[index] = False
    block[NAN_COUNT, index] = float(values.isnan().sum())
    block[INF_COUNT, index] = float(values.isinf().sum())
    largest = float(absolute.max()) if absolute.numel() else 0.0
    scale = largest if 0 < largest < np.inf else 1.0
    scaled = values / scale
    mean = float(scaled.sum()) / elements
    # A sparse tensor's unstored elements are zeros of the dense one.
    unstored = elements - values.numel()
    variance = (float(torch.sum(torch.square(scaled - mean))) + unstored * mean**2) / elements
    block[MAX_ABS, index] = largest
    block[NORM, index] = float(torch.linalg.vector_norm(scaled)) * scale
    block[MEAN, index] = mean * scale
    block[STD, index] = np.sqrt(variance) * scale


def _stored_elements(tensor: Tensor) -> Tensor:
    """Return the (n,) elements that a tensor really holds: all of a dense one, the values of a sparse one."""
    if tensor.layout is torch.strided:
        return tensor.dequantize().reshape(-1) if tensor.is_quantized else tensor.reshape(-1)
    values = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.reshape(-1)
