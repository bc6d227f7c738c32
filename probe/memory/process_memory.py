"""Takes a memory snapshot: process, machine and, where CUDA is in use, its allocator. On any thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from ..compat.torch_cuda import allocator_facts, device_facts, devices_in_use
from ..delivery.host_memory import read_memory, unique_bytes
from ..guard import is_from_signal
from ..wire.memory_snapshots import CudaMemory, MemorySnapshot


def read_snapshot(
    label: str,
    *,
    cause: Literal["call", "steps", "epoch", "request"] = "call",
    step: int | None = None,
    uss: bool = True,
    tracked: tuple[int, int] = (0, 0),
) -> MemorySnapshot:
    """Read memory now; what the system does not tell is None. Initialises no CUDA and waits for no device.

    Args:
        label: of the snapshot; cut off after 512 characters.
        cause: who asks for it.
        step: newest finished one.
        uss: whether the process's unique pages are counted, which takes 10 ms for each GiB.
        tracked: number and bytes of the tracked tensors that live.
    """
    sample = read_memory()
    return MemorySnapshot(
        label=label[:512],
        cause=cause,
        time=time.time(),
        step=step,
        rss_bytes=None if sample is None else sample.rss_bytes,
        uss_bytes=_or_none(unique_bytes) if uss else None,
        system_used_bytes=None if sample is None else sample.system_used_bytes,
        system_total_bytes=None if sample is None else sample.system_total_bytes,
        tracked_tensors=tracked[0],
        tracked_bytes=tracked[1],
        cuda=tuple(map(read_device, devices_in_use())),
    )


def read_device(device: int) -> CudaMemory:
    """Read the allocator of one device that is in use."""
    facts = device_facts(device)
    return CudaMemory(
        device=device, name=facts["name"], total_bytes=facts["total_bytes"], **allocator_facts(device)
    )


def _or_none(read: Callable[[], int]) -> int | None:
    try:
        return read()
    except OSError as error:
        if is_from_signal(error):
            raise
        return None
