"""Statistics of a named tensor of the run, read only when a step's frame is written: waits for no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ...compat import torch_modes
from ...compat.host_copy import HostCopy, is_capturing
from ...compat.torch_memory import local_shard
from ...guard import let_pass
from ...measure.statistics.statistics import tensor_statistics
from ...measure.statistics.torch_statistics import dense_elements

STATISTICS: Final = ("norm", "max_abs", "mean", "std", "nan_count", "inf_count")
"""Series of a watched tensor, in the order in which a device computes them."""


def deferred_statistics(name: str, tensor: Tensor) -> dict[str, Callable[[], float]]:
    """Return functions that give the statistics of a tensor as it is now, by `<name>/<statistic>`.

    On CUDA the reductions are launched and their results copied without blocking; the first function that is
    called waits for that one copy. A CPU tensor is measured at once: it may be changed in place before the
    functions are called. A tensor without elements has no statistics. NaN and Inf propagate.

    Args:
        name: of the series.
        tensor: of any floating-point or complex dtype; integers and booleans are taken as numbers. A DTensor
            is measured through this rank's shard.

    Raises:
        ValueError: it is no tensor, or one that cannot be read (meta, fake, inside torch.func, in a graph
            that is being captured).
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"watch_tensor({name!r}, ...) takes a torch.Tensor, got {type(tensor).__name__}")
    local = local_shard(tensor)
    if local.device.type == "meta" or torch_modes.is_functorch_wrapped(local):
        raise ValueError(f"watch_tensor({name!r}, ...) got a tensor without readable elements")
    if not local.numel():
        return {}
    try:
        with torch.no_grad(), torch.autocast(local.device.type, enabled=False):
            read = _measured(local) if local.is_cpu else _launched(local)
    except (RuntimeError, NotImplementedError) as error:
        let_pass(error)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"watch_tensor({name!r}, ...) cannot read the tensor: {reason}") from None
    return {f"{name}/{statistic}": read(index) for index, statistic in enumerate(STATISTICS)}


def _measured(tensor: Tensor) -> Callable[[int], Callable[[], float]]:
    """Measure now, on the CPU."""
    column = tensor_statistics([_as_floats(tensor)]).block[:, 0].tolist()
    return lambda index: lambda: float(column[index])


def _launched(tensor: Tensor) -> Callable[[int], Callable[[], float]]:
    """Launch the reductions on the device, in float64, and one copy. Sparse tensors make torch wait."""
    if is_capturing():
        raise RuntimeError("a CUDA graph is being captured")
    tensor = _as_floats(tensor)
    values = dense_elements(tensor)
    count = values.numel()
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    mean = values.sum(dtype=torch.float64) / count
    # Sums in float64: |mean| may be 1e7 times the spread before the difference loses it.
    variance = (norm.square() / count - mean.square()).clamp_min(0)
    moduli = torch.view_as_complex(values.reshape(-1, 2)) if tensor.is_complex() else values
    largest = torch.linalg.vector_norm(moduli, float("inf")).double()
    rows = [
        norm,
        largest,
        mean,
        variance.sqrt(),
        values.isnan().sum().double(),
        values.isinf().sum().double(),
    ]
    copy = HostCopy(torch.stack(rows))
    return lambda index: lambda: float(copy.read()[index])


def _as_floats(tensor: Tensor) -> Tensor:
    """Integers, booleans and float8 as float64; the measuring functions take everything else."""
    is_number = tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype.itemsize >= 2)
    return tensor if is_number or tensor.is_quantized else tensor.double()
