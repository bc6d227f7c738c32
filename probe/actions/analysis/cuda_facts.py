"""What a report says of CUDA: the devices, and what torch's allocator holds there. Initialises nothing."""

from __future__ import annotations

from typing import Any

import torch

from ...compat import torch_memory


def cuda_facts() -> dict[str, Any]:
    """Return devices and memory in bytes; of a process that does not use CUDA only that."""
    if not torch_memory.cuda_is_initialised():
        return {"in_use": False, "built_with": torch.version.cuda, "devices": []}
    devices = [_device(index) for index in range(torch.cuda.device_count())]
    return {"in_use": True, "built_with": torch.version.cuda, "devices": devices}


def _device(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    statistics = torch.cuda.memory_stats(index)
    return {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "total_bytes": properties.total_memory,
        "allocated_bytes": torch.cuda.memory_allocated(index),
        "reserved_bytes": torch.cuda.memory_reserved(index),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(index),
        "allocation_retries": statistics.get("num_alloc_retries", 0),
        "out_of_memory": statistics.get("num_ooms", 0),
    }
