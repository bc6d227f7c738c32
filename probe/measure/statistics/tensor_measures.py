"""Measures of activations, pairs of tensors and units: tensors in, numpy arrays out; pure, on any thread.

Called with sampled tensors by what watches modules and by the analysis calls. Like `statistics`, nothing here
draws random numbers, changes a tensor or leaves a gradient graph. Each call waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...compat.torch_memory import local_shard
from ..kernels import binding
from ..kernels.binding import F64, KNOWN_SPECIAL, MISSING, Batch, Kernel
from .native_statistics import gathered
from .torch_statistics import NORM, ROWS, Floats, dense_elements, measure_by_torch, plan_by_torch

Bounds: TypeAlias = tuple[float, float] | None
"""(low, high): an element at or below `low`, or at or above `high`, counts as saturated."""

_FIRST_ROWS: Final = 256
_ROW: Final = ROWS + 2
"""In a row of `ActivationRows` the shares of zeros and saturated elements follow the usual."""
_TINY: Final = 1e-140
"""Below, squares of float64 may have vanished."""


class ActivationStatistics(msgspec.Struct, frozen=True):
    """Statistics of a list of activations; every array is (tensors,) float64 in the list's order.

    Of a tensor without elements: `missing` is True and the rest 0. NaN and Inf elements propagate into `rms`,
    `max_abs`, `mean` and `std`; a NaN is neither zero nor saturated. Real and imaginary parts of a complex
    tensor are elements of their own, except for `max_abs`.
    """

    block: Floats
    """(8, tensors): the arrays below, in their order."""
    missing: npt.NDArray[np.bool_]

    def _row(self, row: int) -> Floats:
        values: Floats = self.block[row]
        return values

    @property
    def rms(self) -> Floats:
        """Root of the mean square."""
        return self._row(0)

    @property
    def max_abs(self) -> Floats:
        """Largest absolute element."""
        return self._row(1)

    @property
    def mean(self) -> Floats:
        """Arithmetic mean."""
        return self._row(2)

    @property
    def std(self) -> Floats:
        """Population standard deviation (divisor n)."""
        return self._row(3)

    @property
    def zero_fraction(self) -> Floats:
        """Share of elements that are exactly 0, in 0-1."""
        return self._row(4)

    @property
    def saturated_fraction(self) -> Floats:
        """Share of elements at or beyond the bounds, in 0-1; 0 where no bounds were asked for."""
        return self._row(5)

    @property
    def nan_count(self) -> Floats:
        """Number of NaN elements."""
        return self._row(6)

    @property
    def inf_count(self) -> Floats:
        """Number of infinite elements."""
        return self._row(7)


def activation_statistics(
    tensors: Sequence[Tensor], *, saturation: float | Sequence[Bounds] | None = None
) -> ActivationStatistics:
    """Measure activations, each tensor by itself; a DTensor through its local shard.

    Args:
        tensors: of any shape and floating or complex dtype.
        saturation: a number `s` stands for the bounds (-s, s) of every tensor (0.99 for a tanh, say); a
            sequence has bounds or None for each.
    """
    bounds = _bounds_of_each(saturation, len(tensors))
    listed: list[Tensor | None] = [*tensors]
    kernel = binding.kernel()
    if kernel is None:
        return _activations_by_torch(listed, bounds)
    batch = gathered(kernel, listed)
    batch.count_within(bounds)
    kernel.measure(batch)
    missing, special = batch.kinds == MISSING, batch.special
    block = np.zeros((8, len(listed)))
    block[0] = batch.block[NORM] / np.sqrt(np.maximum(batch.sizes, 1))
    block[1:4], block[4:6], block[6:8] = batch.block[1:4], batch.fractions, batch.block[4:6]
    if special.size:
        rest = _activations_by_torch([listed[index] for index in special.tolist()], bounds[:, special])
        block[:, special], missing[special] = rest.block, rest.missing
    return ActivationStatistics(block, missing)


class ActivationRows:
    """Measures activations one at a time, while they are there, with the numbers of `activation_statistics`.

    By the kernel alone: no operation of torch's runs, and nothing is allocated for a tensor.

    Args:
        kernel: the loaded kernel.

    Attributes:
        kernel: the same.
        batch: of the tensor that was measured last.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.batch = kernel, Batch(1)
        self._bounds = np.full((2, 1), np.nan)
        self.batch.count_within(self._bounds)
        self._make_room(np.zeros((_FIRST_ROWS, _ROW)))

    def measure(self, number: int, tensor: Tensor, bounds: Bounds) -> bool:
        """Measure a dense CPU tensor with elements into row `number`; False where torch must do it.

        The tensor must not be lazily negated or conjugated.
        """
        while number >= len(self._rows):
            self._make_room(np.concatenate([self._rows, np.zeros_like(self._rows)]))
        batch, job, address = self.batch, self.batch.job, self._address + number * self._row_bytes
        job.block, job.fractions = address, address + self._fractions_at
        low_high = self._bounds
        low_high[0, 0], low_high[1, 0] = (np.nan, np.nan) if bounds is None else bounds
        if not self.kernel.measure_list(batch, [tensor]):
            self.kernel.measure(batch)
        return not (job.special or job.missing)

    def zero_fraction(self, number: int) -> float:
        """Share (0-1) of a measured tensor's elements that are exactly 0."""
        return float(self._rows[number, ROWS])

    def active_units(self, tensor: Tensor, dim: int) -> npt.NDArray[np.bool_]:
        """Like `unit_activity`, of the tensor that was measured last."""
        sizes = _units_in_memory(tensor, dim) if tensor.dim() else None
        if sizes is None:
            return unit_activity(tensor, dim)
        return self.kernel.active_units(self.batch, *sizes)

    def fetch(self, elements: Floats) -> Floats:
        """Return (tensors, 8) rows in the order of `ActivationStatistics`; zeros where nothing was measured.

        Args:
            elements: (tensors,) number of elements of each, at least 1.
        """
        result = np.zeros((len(elements), 8))
        # Of tensors on a device there are no rows.
        rows = self._rows[: len(elements)]
        here = result[: len(rows)]
        here[:, 0] = rows[:, NORM] / np.sqrt(elements[: len(rows)])
        here[:, 1:4], here[:, 4:6], here[:, 6:8] = rows[:, 1:4], rows[:, ROWS:], rows[:, 4:6]
        return result

    def _make_room(self, rows: Floats) -> None:
        self._rows, self._address = rows, rows.ctypes.data
        self._row_bytes, self._fractions_at = rows.itemsize * _ROW, rows.itemsize * ROWS


def difference_norms(new: Sequence[Tensor | None], old: Sequence[Tensor | None]) -> Floats:
    """Return the (tensors,) L2 norms of new - old, float64; 0 where either is None or both are empty.

    Raises:
        ValueError: the lists differ in length, or a pair in shape.
    """
    _check_pairs(new, old)
    return _measure_pairs(list(new), list(old), _difference_norm, product=False)


def dot_products(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> Floats:
    """Return the (tensors,) sums of a * b, float64; 0 where either is None or both are empty.

    Complex tensors count as pairs of reals: the real part of their inner product.

    Raises:
        ValueError: the lists differ in length, or a pair in shape.
    """
    first = list(a)
    second = first if b is a else list(b)
    _check_pairs(first, second)
    return _measure_pairs(first, second, _dot_product, product=True)


def unit_activity(tensor: Tensor, dim: int | None = None) -> npt.NDArray[np.bool_]:
    """Return (units,) whether a unit had any element that is not 0; NaN counts as activity.

    Args:
        tensor: an activation, (batch, ..., units) or (batch, channels, height, width[, depth]).
        dim: where the units are; by default dimension 1 of a 4-D or 5-D tensor, else the last.
    """
    if tensor.dim() == 0:
        return np.array([bool(tensor != 0)])
    units = dim if dim is not None else (1 if tensor.dim() in (4, 5) else tensor.dim() - 1)
    kernel, sizes = binding.kernel(), _units_in_memory(tensor, units)
    if kernel is not None and sizes is not None:
        one: list[Tensor | None] = [tensor]
        batch = gathered(kernel, one)
        if not batch.job.special and not batch.job.missing:
            return kernel.active_units(batch, *sizes)
    with torch.no_grad():
        moved = local_shard(tensor).detach().movedim(units, 0)
        flat = moved.reshape(moved.shape[0], -1) if moved.numel() else moved.new_zeros((moved.shape[0], 1))
        active: npt.NDArray[np.bool_] = (flat != 0).any(dim=1).cpu().numpy()
    return active


def _units_in_memory(tensor: Tensor, dim: int) -> tuple[int, int, int] | None:
    """How a tensor lies in memory as (outer, units, inner) elements; None when it does not."""
    if tensor.layout is not torch.strided:
        return None
    shape, parts = tensor.shape, 2 if tensor.is_complex() else 1
    if tensor.is_contiguous():
        return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]) * parts
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if dim == 1 and tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()]):
        return math.prod(shape) // max(shape[1], 1), shape[1], parts
    return None


def _activations_by_torch(tensors: Sequence[Tensor | None], bounds: Floats) -> ActivationStatistics:
    local = [None if tensor is None else local_shard(tensor) for tensor in tensors]
    base, missing, _, _ = measure_by_torch(local, plan_by_torch(local))
    block = np.zeros((8, len(local)))
    block[1:4], block[6:8] = base[1:4], base[4:6]
    for index, tensor in enumerate(local):
        if tensor is None or missing[index]:
            continue
        values = dense_elements(tensor)
        values = values if values.dtype is torch.float64 else values.float()
        low, high = bounds[:, index]
        block[0, index] = base[NORM, index] / np.sqrt(values.numel())
        block[4, index] = float((values == 0).sum()) / values.numel()
        block[5, index] = float(((values <= low) | (values >= high)).sum()) / values.numel()
    return ActivationStatistics(block, missing)


_Pairs: TypeAlias = list[Tensor | None]


def _measure_pairs(
    first: _Pairs, second: _Pairs, by_torch: Callable[[Tensor, Tensor], float], *, product: bool
) -> Floats:
    """Measure by the kernel what lies alike in memory, and the rest, or what is doubtful, one by one."""
    kernel = binding.kernel()
    results, rest = np.zeros(len(first)), np.ones(len(first), dtype=np.bool_)
    if kernel is not None:
        one = gathered(kernel, first)
        other = one if second is first else gathered(kernel, second)
        rest = (one.kinds != other.kinds) | (one.kinds >= KNOWN_SPECIAL)
        if second is not first:
            for index in np.flatnonzero(~rest & (one.kinds != MISSING)).tolist():
                rest[index] = not lie_alike(first[index], second[index])
        one.sizes[rest | (one.kinds == MISSING)] = 0
        results = kernel.pair_sums(one, other, product=product)
        # Squares of extreme float64 overflow or vanish.
        rest |= (one.sizes > 0) & ~((np.abs(results) > _TINY) & (np.abs(results) < np.inf)) & (results != 0)
        rest |= (one.sizes > 0) & (one.kinds == F64) & (results == 0)
    for index in np.flatnonzero(rest).tolist():
        a, b = first[index], second[index]
        if a is not None and b is not None and a.device.type != "meta" and a.numel():
            results[index] = by_torch(dense_elements(a).double(), dense_elements(b).double())
    return results


def lie_alike(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two dense tensors of one shape have their elements in the same order."""
    if a is None or b is None:
        return False
    return (a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride()


def _difference_norm(new: Tensor, old: Tensor) -> float:
    difference = (new - old).abs()
    largest = float(difference.max())
    if not 0 < largest < math.inf:
        return largest
    return float(torch.linalg.vector_norm(difference / largest)) * largest


def _dot_product(a: Tensor, b: Tensor) -> float:
    return float(torch.sum(a * b))


def _bounds_of_each(saturation: float | Sequence[Bounds] | None, count: int) -> Floats:
    """Return (2, tensors) bounds, NaN where there are none."""
    bounds = np.full((2, count), np.nan)
    if isinstance(saturation, int | float):
        bounds[0], bounds[1] = -saturation, saturation
    elif saturation is not None:
        if len(saturation) != count:
            raise ValueError(f"saturation has {len(saturation)} entries for {count} tensors")
        for index, one in enumerate(saturation):
            if one is not None:
                bounds[:, index] = one
    return bounds


def _check_pairs(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> None:
    if first is second:
        return
    if len(first) != len(second):
        raise ValueError(f"{len(first)} tensors cannot be paired with {len(second)}")
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if one is not None and other is not None and one.shape != other.shape:
            raise ValueError(f"pair {index} has shapes {tuple(one.shape)} and {tuple(other.shape)}")
