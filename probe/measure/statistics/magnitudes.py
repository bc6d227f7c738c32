"""Histograms of tensors' elements by log2 magnitude, into the bins of `magnitude_bins`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...wire.magnitude_bins import BIN_EDGES, BINS, NAN_BIN, Counts
from ..kernels import binding
from ..kernels.binding import KNOWN_SPECIAL
from .native_statistics import gathered
from .torch_statistics import dense_elements


def log2_histograms(tensors: Sequence[Tensor | None]) -> Counts:
    """Count the elements of each tensor by magnitude; None and empty ones give a row of zeros.

    Real and imaginary parts of a complex tensor are elements of their own; a sparse tensor's unstored ones
    are zeros. Waits for the device.

    Returns:
        (tensors, BINS) int64.
    """
    counts = np.zeros((len(tensors), BINS), dtype=np.int64)
    listed, kernel = list(tensors), binding.kernel()
    left = range(len(listed))
    if kernel is not None and listed:
        batch = gathered(kernel, listed)
        batch.sizes[batch.kinds >= KNOWN_SPECIAL] = 0
        kernel.histograms(batch, _EDGE_BITS, counts)
        left = batch.special.tolist()
    with torch.no_grad():
        for index in left:
            tensor = listed[index]
            if tensor is not None and tensor.device.type != "meta" and tensor.numel():
                _count(counts[index], tensor)
    return counts


def histogram_of_gathered(kernel: binding.Kernel, batch: binding.Batch) -> Counts:
    """Return the (BINS,) counts of a batch's only tensor, which the kernel has just read by pointer."""
    counts = np.zeros((1, BINS), dtype=np.int64)
    kernel.histograms(batch, _EDGE_BITS, counts)
    return counts.reshape(-1)


def _edge_bits() -> npt.NDArray[np.uint32]:
    """Return (BINS,) upper edges as the bits of float32 numbers, which all but the first are exactly."""
    smallest, inf, last = 1, 0x7F800000, 0xFFFFFFFF
    inner = np.array(BIN_EDGES[1:-1], dtype=np.float32).view(np.uint32)
    return np.array([smallest, *inner, inf, inf + 1, last], dtype=np.uint32)


_EDGE_BITS: Final = _edge_bits()


def _count(row: Counts, tensor: Tensor) -> None:
    absolute = dense_elements(tensor).double().abs()
    edges = torch.tensor(BIN_EDGES, dtype=torch.float64, device=absolute.device)
    bins = torch.bucketize(absolute, edges, right=True)
    bins[absolute.isnan()] = NAN_BIN
    row += torch.bincount(bins, minlength=BINS).cpu().numpy()
