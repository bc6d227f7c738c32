"""CUDA's facts: nothing is initialised by asking; the allocator's statistics by their names."""

from __future__ import annotations

import json
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


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two devices, the second of which this process uses."""
    device = SimpleNamespace(name="H", total_memory=4096, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch_cuda, "cuda_is_initialised", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1000 * device)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: STATISTICS if device else {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)


def test_facts_are_of_the_devices_in_use(two_devices: None) -> None:
    facts = torch_cuda.cuda_facts()
    assert (facts["in_use"], facts["current_device"], facts["device_count"]) == (True, 1, 2)
    (device,) = facts["devices"]
    assert device == {
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
    assert json.loads(json.dumps(facts)) == facts


def test_facts_without_cuda_ask_no_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        pytest.skip("an earlier test has initialised CUDA")
    facts = torch_cuda.cuda_facts()
    assert (facts["in_use"], facts["devices"], facts["built_for"]) == (False, [], torch.version.cuda)
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
@pytest.mark.capability(44)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_facts_are_those_of_the_allocator() -> None:
    before = torch.cuda.memory_allocated()
    block = torch.ones(2**20, device="cuda")
    (device,) = [one for one in torch_cuda.cuda_facts()["devices"] if one["device"] == block.device.index]
    assert device["allocated_bytes"] == before + block.nbytes <= device["peak_allocated_bytes"]
    assert device["total_bytes"] == torch.cuda.get_device_properties(0).total_memory
