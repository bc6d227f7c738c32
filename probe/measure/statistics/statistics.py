"""Statistics of many tensors at once: tensors in, float64 numpy arrays out; on the training thread, pure.

CPU tensors go through the native kernel (`native_statistics`), one fused pass each, read by pointer where
that is safe; everything else, and everything where there is no kernel, through `torch_statistics`. Nothing
here draws random numbers, changes a tensor or leaves a gradient graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...compat.torch_memory import local_shard
from ..kernels import binding
from .native_statistics import NativeMeasurement
from .torch_statistics import (
    INF_COUNT,
    MAX_ABS,
    MEAN,
    NAN_COUNT,
    NORM,
    STD,
    Flags,
    Floats,
    Summary,
    TorchPlan,
    measure_by_torch,
    plan_by_torch,
    start_by_torch,
)

__all__ = [
    "Floats",
    "MeasuringPlan",
    "PendingStatistics",
    "TensorStatistics",
    "plan_measurement",
    "tensor_norms",
    "tensor_statistics",
]


class TensorStatistics(NamedTuple):
    """Statistics of a list of tensors; every array is (tensors,) float64 in the list's order.

    Of a tensor that is None or has no elements: `missing` is True and the rest 0. NaN and Inf elements
    propagate into `norm`, `max_abs`, `mean` and `std` as IEEE arithmetic has it.
    """

    block: Floats
    """(6, tensors): norm, max_abs, mean, std, nan_count, inf_count."""
    missing: Flags
    is_finite: bool
    """Whether no element of any tensor is NaN or Inf."""
    total_norm: float | None
    """Global L2 norm over all tensors; None when every one is missing."""
    has_counts: bool = True
    """Whether NaN and Inf elements were counted; else the counts are 0, and `max_abs` tells of them."""

    def over(self, others: TensorStatistics) -> TensorStatistics:
        """Return these, and where a tensor is missing here, those of others of the same list."""
        taken = self.missing & ~others.missing
        if not taken.any():
            return self
        block = np.where(taken, others.block, self.block)
        missing = self.missing & others.missing
        return TensorStatistics(
            block,
            missing,
            self.is_finite and bool(np.isfinite(block[:, taken]).all()),
            float(np.linalg.norm(block[NORM][~missing])),
            self.has_counts and others.has_counts,
        )

    def _row(self, row: int) -> Floats:
        values: Floats = self.block[row]
        return values

    @property
    def norm(self) -> Floats:
        """L2 norm."""
        return self._row(NORM)

    @property
    def max_abs(self) -> Floats:
        """Largest absolute element."""
        return self._row(MAX_ABS)

    @property
    def mean(self) -> Floats:
        """Arithmetic mean."""
        return self._row(MEAN)

    @property
    def std(self) -> Floats:
        """Population standard deviation (divisor n)."""
        return self._row(STD)

    @property
    def nan_count(self) -> Floats:
        """Number of NaN elements."""
        return self._row(NAN_COUNT)

    @property
    def inf_count(self) -> Floats:
        """Number of infinite elements."""
        return self._row(INF_COUNT)


class PendingStatistics:
    """Statistics that may still be on their way from a device."""

    __slots__ = ("_found", "_read")

    def __init__(self, read: Callable[[], TensorStatistics | tuple[Summary, bool]]) -> None:
        self._read = read
        self._found: TensorStatistics | None = None

    def read(self) -> TensorStatistics:
        """Return them, the same each time; waits where they have yet to arrive."""
        found = self._found
        if found is None:
            read = self._read()
            if isinstance(read, TensorStatistics):
                found = read
            else:
                summary, has_counts = read
                found = TensorStatistics(*summary, has_counts=has_counts)
            self._found = found
        return found


class MeasuringPlan:
    """How the tensors of a list are measured, with the memory for it: made once, used at every step."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        kernel = binding.kernel()
        self._count = len(tensors)
        self._has_shards = any(t is not None and local_shard(t) is not t for t in tensors)
        self._torch_plan: TorchPlan | None = None
        self._native: NativeMeasurement | None = None
        if kernel is not None and _some_on_cpu(tensors):
            self._native = NativeMeasurement(kernel, len(tensors))
        else:
            self._torch_plan = plan_by_torch(tensors)

    def fits(self, tensors: Sequence[Tensor | None]) -> bool:
        """Whether gradients of the planned parameters can still be measured by this plan."""
        if self._torch_plan is not None:
            return self._torch_plan.fits(tensors)
        return len(tensors) == self._count and _some_on_cpu(tensors)

    def measure(self, tensors: Sequence[Tensor | None]) -> TensorStatistics:
        """Measure tensors that the plan was made for; any other list is measured too, but slower."""
        if self._has_shards:
            tensors = _here(tensors)
        native = self._native
        if native is None or len(tensors) != self._count or not native.lock.acquire(blocking=False):
            return tensor_statistics(tensors) if native is not None else self._measure_by_torch(tensors)
        try:
            return TensorStatistics(*native.measure(tensors if type(tensors) is list else list(tensors)))
        finally:
            native.lock.release()

    def start(self, tensors: Sequence[Tensor | None]) -> PendingStatistics:
        """Start to measure tensors, which may be changed or freed as soon as this returns.

        Waits for no CUDA device unless some tensors are sparse, complex or small ones on the CPU.
        """
        if self._native is None:
            read = start_by_torch(*self._by_torch(_here(tensors) if self._has_shards else tensors))
            if read is not None:
                return PendingStatistics(read)
        measured = self.measure(tensors)
        return PendingStatistics(lambda: measured)

    def release(self) -> None:
        """Nothing is measured for a while: let go of the results kept for reuse but one.

        Of 2,000 tensors a result takes 96 KB, and as many are kept as ever waited for the recorder.
        """
        native = self._native
        if native is not None and native.lock.acquire(blocking=False):
            try:
                native.release()
            finally:
                native.lock.release()

    def _measure_by_torch(self, tensors: Sequence[Tensor | None]) -> TensorStatistics:
        return TensorStatistics(*measure_by_torch(*self._by_torch(tensors)))

    def _by_torch(self, tensors: Sequence[Tensor | None]) -> tuple[Sequence[Tensor | None], TorchPlan]:
        """What of the tensors is here, and how torch is to measure it."""
        plan = self._torch_plan
        if plan is not None and plan.fits(tensors):
            return tensors, plan
        tensors = _here(tensors)
        return tensors, plan_by_torch(tensors)


def plan_measurement(tensors: Sequence[Tensor | None]) -> MeasuringPlan:
    """Prepare to measure these tensors repeatedly; for parameters, the plan serves their gradients too."""
    return MeasuringPlan(tensors)


def tensor_statistics(
    tensors: Sequence[Tensor | None], plan: MeasuringPlan | None = None
) -> TensorStatistics:
    """Measure all tensors; None entries are reported as missing.

    Complex tensors are measured through absolute values (norm, max_abs) and their real and imaginary parts
    as separate elements (mean, std, counts). A DTensor is measured through its local shard.
    Waits for the device: one host copy per device, plus one for each tensor that needs the exact way.
    The caller keeps the tensors from being freed or resized until this returns.

    Args:
        tensors: what to measure.
        plan: of the same tensors or of the parameters that they belong to; used if it still fits.
    """
    return (plan or MeasuringPlan(tensors)).measure(tensors)


def tensor_norms(tensors: Sequence[Tensor], plan: MeasuringPlan | None = None) -> Floats:
    """Return the (tensors,) L2 norms only; same ways and precision as `tensor_statistics`."""
    return tensor_statistics(tensors, plan).norm


def _here(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What of each tensor is on this rank."""
    return [None if tensor is None else local_shard(tensor) for tensor in tensors]


def _some_on_cpu(tensors: Sequence[Tensor | None]) -> bool:
    return any(tensor is not None and tensor.is_cpu for tensor in tensors)
