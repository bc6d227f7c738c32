"""A machine with two CUDA devices that is none: what torch says of them, and of the second's allocator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from probe.compat import torch_cuda

STATISTICS = {
    "allocated_bytes.all.current": 600,
    "reserved_bytes.all.current": 1000,
    "allocated_bytes.all.peak": 900,
    "reserved_bytes.all.peak": 1100,
    "num_alloc_retries": 2,
    "num_ooms": 1,
    "segment.all.current": 3,
}
SECOND_DEVICE = {
    "device": 1,
    "name": "H",
    "total_bytes": 4096,
    "capability": "9.0",
    "multi_processors": 132,
    "allocated_bytes": 600,
    "reserved_bytes": 1000,
    "fragmentation_bytes": 400,
    "segments": 3,
    "peak_allocated_bytes": 900,
    "peak_reserved_bytes": 1100,
    "retries": 2,
    "ooms": 1,
}
"""What the facts say of it."""


def stand_in_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices, the second of which this process uses; asked through `compat.torch_cuda` alone."""
    device = SimpleNamespace(name="H", total_memory=4096, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch_cuda, "cuda_is_initialised", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1000 * device)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: STATISTICS if device else {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
