"""Brings small results to the host without making the training thread wait for the device.

A CPU tensor is there at once; one on CUDA is copied to pinned memory behind the work that is already queued,
and read when an event says that it has arrived. Used on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from .torch_memory import cuda_is_initialised

_RAISES: Final = 2
"""Of `torch.cuda.get_sync_debug_mode`: what waits for a device raises."""


class Copy(Protocol):
    """A copy that may still be on its way."""

    @property
    def is_ready(self) -> bool:
        """Whether `read` returns at once."""
        ...

    def read(self) -> Tensor:
        """Return the values on the host; waits where they have yet to arrive."""
        ...


StartCopy: TypeAlias = Callable[[Tensor], Copy]


class HostCopy:
    """A copy of `tensor` as it is at this point of the device's queue; later writes do not reach it.

    Waits for no CUDA device. Of other accelerators it waits, for want of an event.
    """

    def __init__(self, tensor: Tensor) -> None:
        source = tensor.detach()
        self._event: torch.cuda.Event | None = None
        if source.is_cuda:
            self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            with torch.cuda.device(source.device):
                self._host.copy_(source, non_blocking=True)
                self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._event.record()
        else:
            self._host = source.to("cpu", copy=True)

    @property
    def is_ready(self) -> bool:
        """Whether `read` returns at once."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def read(self) -> Tensor:
        """Return the values on the host; waits where they have yet to arrive."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


class LatestValue:
    """The newest known value of one scalar tensor that changes in place.

    Args:
        start_copy: stands in for `HostCopy` in tests.
    """

    def __init__(self, start_copy: StartCopy = HostCopy) -> None:
        self._start_copy = start_copy
        self._value: float | None = None
        self._pending: Copy | None = None

    def read(self, tensor: Tensor) -> float | None:
        """Return a CPU tensor's value; of one on a device that of an earlier call, None before the first."""
        if tensor.device.type == "cpu":
            return float(tensor)
        if self._pending is not None and self._pending.is_ready:
            self._value = float(self._pending.read())
            self._pending = None
        if self._pending is None and not is_capturing():
            self._pending = self._start_copy(tensor)
        return self._value


def device_is_idle() -> bool:
    """Whether the current CUDA stream has nothing left to do: the script has just waited for it."""
    return cuda_is_initialised() and bool(torch.cuda.current_stream().query())


def waiting_is_an_error() -> bool:
    """Whether the script has torch warn of everything that waits for a CUDA device, or raise."""
    return cuda_is_initialised() and torch.cuda.get_sync_debug_mode() != 0


@contextmanager
def allowed_to_wait() -> Iterator[None]:
    """Wait on purpose, though the script has torch raise at all that waits: it looks for waits of its own."""
    if not cuda_is_initialised() or torch.cuda.get_sync_debug_mode() != _RAISES:
        yield
        return
    try:
        torch.cuda.set_sync_debug_mode("default")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("error")


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing of ours may be queued then."""
    return cuda_is_initialised() and torch.cuda.is_current_stream_capturing()
