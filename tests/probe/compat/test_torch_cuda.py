"""CUDA's facts: nothing is initialised by asking; the allocator's statistics by their names."""

from __future__ import annotations

import json

import pytest
import torch
from cuda_stand_in import SECOND_DEVICE, stand_in_two_devices

from probe.compat import torch_cuda


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_two_devices(monkeypatch)


def test_facts_are_of_the_devices_in_use(two_devices: None) -> None:
    facts = torch_cuda.cuda_facts()
    assert (facts["in_use"], facts["current_device"], facts["device_count"]) == (True, 1, 2)
    (device,) = facts["devices"]
    assert device == SECOND_DEVICE
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
