"""Measures single tensors in the middle of a forward or backward, and brings all results to the host at once.

On the CPU a tensor is measured where it is, while it is still in the processor's cache; on a device the
reductions are queued and their results fetched together at the end of the step. No tensor is kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...compat import torch_modes
from ...compat.host_copy import allowed_to_wait
from ...measure.kernels import binding
from ...measure.kernels.device_pass import NO_BOUNDS, measure_in_one_pass
from ...measure.statistics.tensor_measures import ActivationRows, Bounds, activation_statistics, unit_activity
from ...wire.magnitude_bins import BINS
from .dead_units import all_active
from .measured_rows import WIDTH, Floats

_MAX_UNITS = 65_536
"""More are no neurons but a vocabulary; their activity would cost more than it says."""


class TensorRows:
    """Statistics of the tensors of one step, in the order in which they were measured.

    Attributes:
        elements: number of elements of each.
    """

    def __init__(self) -> None:
        self.elements: list[int] = []
        self._native: ActivationRows | None = None
        self._by_torch: dict[int, Floats] = {}
        self._device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        self._in_one_pass: dict[torch.device, list[tuple[int, Tensor]]] = {}
        self._active: dict[int, npt.NDArray[np.bool_]] = {}
        self._active_on_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        self._counts: dict[int, npt.NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self.elements)

    def measure(self, tensor: Tensor, bounds: Bounds) -> int:
        """Measure a plain dense tensor with at least one element; returns its number."""
        number = len(self.elements)
        if not number and (kernel := binding.kernel()) is not None:
            self._native = ActivationRows(kernel)
        self.elements.append(tensor.numel() * (2 if tensor.is_complex() else 1))
        if not tensor.is_cpu:
            self._measure_on_device(number, tensor, bounds)
        elif self._native is None or not self._native.measure(number, tensor, bounds):
            with torch_modes.own_operations():
                measured = activation_statistics([tensor.detach()], saturation=[bounds])
            self._by_torch[number] = measured.block[:, 0]
        return number

    def note_units(self, number: int, tensor: Tensor, dimension: int) -> int:
        """Note which units of the tensor measured last are not all 0; returns how many it has, or 0."""
        units = tensor.shape[dimension] if tensor.dim() else 1
        if units > _MAX_UNITS or tensor.numel() == 1:
            return 0  # a single number is no unit: it is the same everywhere, whatever it is made of
        if not tensor.is_cpu:
            self._queue_units(number, tensor, dimension)
        elif round(self._zero_fraction(number) * tensor.numel()) < tensor.numel() // units:
            # A dead unit would have more zeros than there are.
            self._active[number] = all_active(units)
        elif self._native is not None and number not in self._by_torch:
            self._active[number] = self._native.active_units(tensor, dimension)
        else:
            with torch_modes.own_operations():
                self._active[number] = unit_activity(tensor.detach(), dimension)
        return units

    def note_histogram(self, number: int, tensor: Tensor) -> None:
        """Count the elements of the tensor measured last by magnitude; waits for the device."""
        from ...measure.statistics.magnitudes import histogram_of_gathered, log2_histograms

        if tensor.is_cpu and self._native is not None and number not in self._by_torch:
            self._counts[number] = histogram_of_gathered(self._native.kernel, self._native.batch)
            return
        with torch_modes.own_operations():
            self._counts[number] = log2_histograms([tensor.detach()])[0]

    def fetch(self) -> Floats:
        """Return all (tensors, WIDTH) statistics; one copy for each device and kind of result."""
        if self._native is None:
            result = np.zeros((len(self), WIDTH))
        else:
            result = self._native.fetch(np.array(self.elements, dtype=np.float64))
        for number, row in self._by_torch.items():
            result[number] = row
        with allowed_to_wait():
            self._fetch_from_devices(result)
        self._native, self._by_torch, self._device, self._active_on_device = None, {}, {}, {}
        self._in_one_pass = {}
        return result

    def _fetch_from_devices(self, result: Floats) -> None:
        for entries in self._device.values():
            rows = torch.stack([row for _, row in entries]).cpu().numpy()
            result[[number for number, _ in entries]] = rows
        for entries in self._in_one_pass.values():
            numbers = [number for number, _ in entries]
            found = torch.cat([one for _, one in entries], dim=1).cpu().numpy()
            result[numbers] = _rows_of(found, np.array([self.elements[number] for number in numbers]))
        for entries in self._active_on_device.values():
            joined = torch.cat([active for _, active in entries]).cpu().numpy()
            ends = np.cumsum([len(active) for _, active in entries])
            parts = np.split(joined, ends[:-1])
            self._active.update(zip((number for number, _ in entries), parts, strict=True))

    def _measure_on_device(self, number: int, tensor: Tensor, bounds: Bounds) -> None:
        with torch_modes.own_operations():
            tensor = tensor.detach()
            # Squares of the largest float64 numbers overflow in it.
            is_wide = tensor.dtype is torch.float64
            found = (
                None if is_wide else measure_in_one_pass([tensor], NO_BOUNDS if bounds is None else bounds)
            )
            if found is not None:
                self._in_one_pass.setdefault(tensor.device, []).append((number, found))
                return
            row = device_statistics(tensor, bounds)
            self._device.setdefault(tensor.device, []).append((number, row))

    def active_units(self) -> dict[int, npt.NDArray[np.bool_]]:
        """Return the (units,) activity of the tensors that it was noted for, to be read; after `fetch`."""
        return self._active

    def histograms(self) -> dict[int, npt.NDArray[np.int64]]:
        """Return the (BINS,) counts of the tensors that they were noted for."""
        return self._counts

    def _zero_fraction(self, number: int) -> float:
        row = self._by_torch.get(number)
        if row is not None:
            return float(row[4])
        return 0.0 if self._native is None else self._native.zero_fraction(number)

    def _queue_units(self, number: int, tensor: Tensor, dimension: int) -> None:
        with torch_modes.own_operations():
            tensor = tensor.detach()
            others = [axis for axis in range(tensor.dim()) if axis != dimension]
            active = (tensor != 0).any(dim=others) if others else tensor != 0
            self._active_on_device.setdefault(tensor.device, []).append((number, active))


def _rows_of(found: Floats, elements: npt.NDArray[np.int64]) -> Floats:
    """Make (tensors, WIDTH) statistics of what the pass has found, (VALUES, tensors)."""
    norm, largest, total, nans, infs, zeros, beyond = found
    with np.errstate(all="ignore"):
        mean = total / elements
        std = np.sqrt(np.maximum(np.square(norm) / elements - np.square(mean), 0.0))
        rms = norm / np.sqrt(elements)
    return np.stack([rms, largest, mean, std, zeros / elements, beyond / elements, nans, infs], axis=1)


def device_statistics(tensor: Tensor, bounds: Bounds) -> Tensor:
    """Queue the reductions of one dense tensor; returns (WIDTH,) float64 on its device, without waiting.

    In float32 (float64 for a float64 tensor), after dividing by the largest element, so that no square
    overflows; the deviation is Welford's (`torch.var_mean`).
    """
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    absolute = tensor.abs().amax()
    wide = values.to(torch.float64 if values.dtype is torch.float64 else torch.float32)
    largest = absolute.to(wide.dtype)
    scale = torch.where(torch.isfinite(largest) & (largest > 0), largest, 1.0)
    scaled = wide / scale
    variance, mean = torch.var_mean(scaled, correction=0)
    low, high = bounds if bounds is not None else (-np.inf, np.inf)
    saturated = ((values <= low) | (values >= high)).sum()
    count = values.numel()
    return torch.stack(
        [
            (torch.sqrt(torch.mean(torch.square(scaled))) * scale).double(),
            absolute.double(),
            (mean * scale).double(),
            (torch.sqrt(variance) * scale).double(),
            (count - torch.count_nonzero(values)).double() / count,
            saturated.double() / count,
            torch.isnan(values).sum().double(),
            torch.isinf(values).sum().double(),
        ]
    )


EMPTY_COUNTS = np.zeros(BINS, dtype=np.int64)
"""Histogram of a row that has none."""
