"""CUDA's devices and torch's caching allocator, as facts. Asking initialises nothing, and waits for nothing.

Called by the memory snapshots, on any thread, and by reports. Names of statistics: `torch.cuda.memory_stats`.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .torch_memory import cuda_is_initialised

_STATISTICS: Final = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "segments": "segment.all.current",
}


def allocator_facts(device: int) -> dict[str, int]:
    """Return the allocator's statistics of one device: bytes, and counts of retries, OOMs and segments.

    Raises:
        RuntimeError: CUDA is not initialised, or there is no such device.
    """
    statistics = torch.cuda.memory_stats(device)
    return {name: int(statistics.get(key, 0)) for name, key in _STATISTICS.items()}


def devices_in_use() -> list[int]:
    """Return the indices of the devices on which this process has reserved memory."""
    if not cuda_is_initialised():
        return []
    # Of a device that was never used the statistics are empty.
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]


def device_facts(device: int) -> dict[str, Any]:
    """Return what a device is: `name`, `total_bytes`, `capability` and `multi_processors`."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": str(properties.name),
        "total_bytes": int(properties.total_memory),
        "capability": f"{properties.major}.{properties.minor}",
        "multi_processors": int(properties.multi_processor_count),
    }


def cuda_facts() -> dict[str, Any]:
    """Return what a report says of CUDA: versions, devices and their allocators, as builtins for JSON.

    `in_use` is whether this process has initialised CUDA; where it has not, no device is asked, for that
    would initialise it, and `devices` is empty. Each device has the names of `device_facts` and
    `allocator_facts` (bytes), and `fragmentation_bytes`: reserved and held by no tensor.
    """
    in_use = cuda_is_initialised()
    return {
        "in_use": in_use,
        "built_for": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version() if in_use else None,  # type: ignore[no-untyped-call]
        "current_device": torch.cuda.current_device() if in_use else None,
        "device_count": torch.cuda.device_count() if in_use else None,
        "devices": [_facts_of(device) for device in devices_in_use()],
    }


def _facts_of(device: int) -> dict[str, Any]:
    allocator = allocator_facts(device)
    free = max(allocator["reserved_bytes"] - allocator["allocated_bytes"], 0)
    return {"device": device, **device_facts(device), **allocator, "fragmentation_bytes": free}
