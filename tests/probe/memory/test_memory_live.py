"""What an out-of-memory event says: what was asked for, what was alive by name and kind, what would fit."""

from __future__ import annotations

import gc
import weakref
from types import TracebackType

import pytest
import torch
from torch import nn

from probe.memory.live_memory import LiveMemory, asked_bytes, describe_live_memory, largest_batch

MIB = 2**20
GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
            20 * GIB,
        ),
        ("CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.90 GiB total capacity)", 512 * MIB),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1152 bytes. Error code 12", 1152),
        ("Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)", 7.28 * 2**40),
        ("MPS backend out of memory", None),
        ("", None),
    ],
)
def test_asked_bytes_of_every_allocators_message(text: str, size: float | None) -> None:
    assert asked_bytes(RuntimeError(text)) == (None if size is None else pytest.approx(size))


def test_largest_batch_is_what_fills_the_memory() -> None:
    # 64 samples hold 6 GiB and ask for 4 more: 10 GiB for 64; 6 + 2 GiB are there for 51.2.
    assert largest_batch(64, free=2 * GIB, asked=4 * GIB, variable=6 * GIB) == 51


def test_largest_batch_where_there_was_room_is_not_known() -> None:
    assert largest_batch(64, free=5 * GIB, asked=4 * GIB, variable=6 * GIB) is None


def attend(query: torch.Tensor) -> torch.Tensor:
    scores = torch.ones(3 * MIB // 4)
    return scores.sum() + query[:, None] - torch.empty(2**46)


def fail(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.ones(64, 256)
    model(inputs).sum().backward()
    optimizer.step()
    attend(inputs)


@pytest.fixture
def failure() -> tuple[LiveMemory, nn.Module]:
    """Fails as torch's CPU allocator does, with a model of 1 MiB in its first layer."""
    gc.collect()
    model = nn.Sequential(nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.Linear(1024, 2))
    optimizer = torch.optim.Adam(model.parameters())
    error, trace = caught(model, optimizer)
    return describe_live_memory(error, trace, model=model, optimizers=[optimizer]), model


def caught(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[BaseException, TracebackType | None]:
    try:
        fail(model, optimizer)
    except RuntimeError as error:
        return error, error.__traceback__
    raise AssertionError("2**48 bytes are there")


def test_live_memory_totals_are_the_models(failure: tuple[LiveMemory, nn.Module]) -> None:
    live, model = failure
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    totals = live.totals()
    assert (totals["parameters"], totals["gradients"]) == (size, size)
    # Two moments of each, and a step count of four bytes.
    assert totals["optimizer state"] == 2 * size + 4 * len(list(model.parameters()))
    assert totals["buffers"] == 2 * 1024 * 4 + 8


def test_live_memory_names_a_tensor_by_the_variable_that_holds_it(
    failure: tuple[LiveMemory, nn.Module],
) -> None:
    live, _ = failure
    names = {block.name: block for block in live.blocks.values()}
    assert names["`scores` in attend(), test_memory_live.py"].bytes == 3 * MIB
    assert names["exp_avg of 0.weight"].bytes == MIB
    assert names["gradient of 0.weight"].what == "float32 (1024, 256)"


def test_live_memory_lines_say_it(failure: tuple[LiveMemory, nn.Module]) -> None:
    live, _ = failure
    assert live.asked_bytes == 2**48
    asked, held, largest = live.lines()
    assert asked.startswith("Asked for 256.0 TiB, where ") and "times that" in asked
    assert "parameters 1." in held and "optimizer state" in held
    assert largest.startswith("Largest: ") and "`scores` in attend()" in largest


def test_live_memory_counts_shared_storage_once(failure: tuple[LiveMemory, nn.Module]) -> None:
    whole = torch.zeros(4, MIB // 4)
    parts = [whole[0], whole[1:], whole.view(-1)]
    live = describe_live_memory(MemoryError(), None)
    mine = [block for block in live.blocks.values() if block.bytes == 4 * MIB and "(4, 262144)" in block.what]
    assert len(mine) <= 1 and len(parts) == 3
    assert live.totals()["other tensors"] >= 4 * MIB


def test_live_memory_says_nothing_that_it_does_not_know() -> None:
    assert LiveMemory("the machine").lines(batch=8) == []


def test_live_memory_fitting_batch_is_said_where_it_is_known() -> None:
    live = LiveMemory(
        "the device", asked_bytes=4 * GIB, free_bytes=2 * GIB, total_bytes=16 * GIB, used_bytes=6 * GIB
    )
    assert live.lines(batch=64)[-1].startswith("At most 51 samples in place of 64 would have fitted")
    assert not any("samples" in line for line in live.lines())


def test_live_memory_keeps_no_tensor_alive() -> None:
    tensor = torch.zeros(1000)
    reference = weakref.ref(tensor)
    live = describe_live_memory(MemoryError(), None)
    del tensor
    assert reference() is None and live.blocks


@pytest.mark.gpu
def test_live_memory_of_a_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = nn.Linear(1024, 1024, device="cuda")
    try:
        torch.empty(2**46, device="cuda")
    except torch.OutOfMemoryError as error:
        live = describe_live_memory(error, error.__traceback__, model=model)
    assert live.device == "the device"
    assert live.totals()["parameters"] == 4 * (1024 * 1024 + 1024)
