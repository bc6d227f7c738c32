"""A device that is none: CPU tensors are measured, copied and waited for as those of CUDA are.

The product believes that the model is on CUDA; what it starts to copy arrives when it is read.
Kernels, streams and events themselves are not stood in for: `tests/setups/test_setups_cuda.py` has those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from probe.attach.watched_model import WatchedModel
from probe.forensics.loss import loss_origin
from probe.loop import verdict_timing
from probe.measure.kernels import binding, hot_binding
from probe.measure.statistics import torch_statistics
from probe.step import late_values, losses


class Device:
    """What is asked of it.

    Attributes:
        copies: how many were started.
        reads: of how many copies the values were taken.
        is_idle: whether it has nothing left to do.
        fails: whether it says so when a copy is read.
    """

    def __init__(self) -> None:
        self.copies = self.reads = 0
        self.is_idle = self.fails = False


@contextmanager
def device_stand_in() -> Iterator[Device]:
    """Have what lies on the CPU taken for what lies on CUDA."""
    device, patch = Device(), pytest.MonkeyPatch()

    class Copy:
        """A copy of the moment, as `HostCopy` is."""

        is_ready = False

        def __init__(self, tensor: Tensor) -> None:
            device.copies += 1
            self._host = tensor.detach().clone()

        def read(self) -> Tensor:
            device.reads += 1
            if device.fails:
                raise RuntimeError("CUDA error: planted")
            return self._host

    hot_binding.status()  # finds the kernel while it is there
    patch.setattr(WatchedModel, "is_on_cuda", True)
    patch.setattr(binding, "kernel", lambda: None)
    patch.setattr(torch_statistics, "_SMALL_ELEMENTS", -1)
    patch.setattr(loss_origin, "_is_known_bad", lambda loss: False)
    patch.setattr(verdict_timing, "device_is_idle", lambda: device.is_idle)
    for module in (torch_statistics, late_values):
        patch.setattr(module, "HostCopy", Copy)

    def start_to_host(scalars: list[Any]) -> Callable[[], tuple[list[float], list[float]]]:
        copy = Copy(torch.stack([one.double().reshape(()) for s in scalars for one in (s.raw, s.loss)]))

        def read() -> tuple[list[float], list[float]]:
            values: list[float] = copy.read().tolist()
            return values[::2], values[1::2]

        return read

    patch.setattr(losses, "_start_to_host", start_to_host)
    try:
        yield device
    finally:
        patch.undo()
