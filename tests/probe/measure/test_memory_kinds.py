"""What memory is for: sums against the sizes of what is there, and when there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probe.measure.memory_kinds import MemoryKinds, tensor_bytes


class Clock:
    """Nanoseconds; each reading takes one."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def trained(optimizer: Any, model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)) if model is None else model
    made = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.1, **options)

    def closure() -> Tensor:
        made.zero_grad()
        loss = model(torch.ones(3, 8)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        made.step(closure)
    return model, made


def read(kinds: MemoryKinds, model: nn.Module, optimizer: Any, **memory: float) -> dict[str, float]:
    return kinds.read(
        [p for p in model.parameters() if p.requires_grad],
        all_parameters=model.parameters,
        optimizers=[optimizer],
        memory=memory or {"process_rss_bytes": 1e9},
    )


def in_state(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from in_state(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from in_state(one)


def size(tensors: Iterator[Tensor] | list[Tensor]) -> int:
    """Bytes of tensors that are dense, by their storages."""
    return sum(one.untyped_storage().nbytes() for one in tensors)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.AdamW, {}),
        (torch.optim.LBFGS, {"history_size": 3}),
    ],
)
def test_sums_are_the_sizes_of_what_is_there(optimizer: Any, options: dict[str, Any]) -> None:
    model, made = trained(optimizer, **options)
    found = read(MemoryKinds(Clock()), model, made)
    state = size(list(in_state(made.state_dict()["state"])))
    parameters = size(list(model.parameters()))
    gradients = size([p.grad for p in model.parameters() if p.grad is not None])
    assert found == {
        "memory_parameters_bytes": parameters,
        "memory_gradients_bytes": gradients,
        "memory_optimizer_bytes": state,
        "memory_other_bytes": 1e9 - parameters - gradients - state,
    }


def test_frozen_parameters_count_and_missing_gradients_do_not() -> None:
    frozen = nn.Linear(8, 8)
    frozen.requires_grad_(False)
    model, made = trained(torch.optim.SGD, nn.Sequential(frozen, nn.Linear(8, 4)))
    made.zero_grad(set_to_none=True)
    found = read(MemoryKinds(Clock()), model, made)
    assert found["memory_parameters_bytes"] == 4 * (64 + 8 + 32 + 4)
    assert found["memory_gradients_bytes"] == found["memory_optimizer_bytes"] == 0


def test_measured_activations_come_with_the_next_reading_and_stay() -> None:
    model, made = trained(torch.optim.SGD)
    clock = Clock()
    kinds = MemoryKinds(clock)
    read(kinds, model, made)
    kinds.note_activations(4096.0)
    assert read(kinds, model, made)["memory_activations_bytes"] == 4096
    clock.now_ns += 10**9
    later = read(kinds, model, made)
    assert later["memory_activations_bytes"] == 4096
    assert later["memory_other_bytes"] == 1e9 - sum(
        later[f"memory_{name}_bytes"] for name in ("parameters", "gradients", "optimizer")
    )


def test_a_reading_waits_two_thousand_times_as_long_as_the_one_before_took() -> None:
    model, made = trained(torch.optim.SGD)
    clock = Clock()
    kinds = MemoryKinds(clock)
    assert read(kinds, model, made)
    taken_ns = 1
    clock.now_ns = 2000 * taken_ns - 1
    assert not read(kinds, model, made)
    clock.now_ns = 2000 * taken_ns
    assert read(kinds, model, made)


def test_rest_that_cannot_be_is_left_out() -> None:
    model, made = trained(torch.optim.SGD)
    assert "memory_other_bytes" not in read(MemoryKinds(Clock()), model, made, process_rss_bytes=100.0)


def test_without_a_reading_of_the_device_there_are_no_sums() -> None:
    model, made = trained(torch.optim.SGD)
    assert read(MemoryKinds(Clock()), model, made, cuda_allocated_bytes=1e9) == {}


def test_new_parameters_are_added_up_anew() -> None:
    model, made = trained(torch.optim.SGD)
    clock = Clock()
    kinds = MemoryKinds(clock)
    before = read(kinds, model, made)["memory_parameters_bytes"]
    model.append(nn.Linear(4, 4))
    clock.now_ns += 10**9
    assert read(kinds, model, made)["memory_parameters_bytes"] == before + 4 * 20


def test_sparse_gradient_counts_its_indices_and_values() -> None:
    table = nn.Embedding(1000, 8, sparse=True)
    table(torch.tensor([1, 5, 7])).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None and gradient.layout is torch.sparse_coo
    assert tensor_bytes(gradient) == 3 * 8 + 3 * 8 * 4


def test_state_of_very_many_parameters_is_read_anew_in_parts() -> None:
    model, made = trained(
        torch.optim.SGD, nn.Sequential(*(nn.Linear(8, 8) for _ in range(100))), momentum=0.9
    )
    clock = Clock()
    kinds = MemoryKinds(clock)
    before = read(kinds, model, made)["memory_optimizer_bytes"]
    assert before == size(list(model.parameters()))
    for state in made.state.values():
        state["second"] = torch.zeros(1024)
    found = []
    for _ in range(2):
        clock.now_ns += 10**9
        found.append(read(kinds, model, made)["memory_optimizer_bytes"])
    assert found == [before + 128 * 4096, before + 200 * 4096]


def test_on_a_device_of_its_own_the_rest_is_of_what_the_allocator_gave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The meta device stands in for CUDA: the sums go by the tensors' device alone."""
    model = nn.Linear(8, 4, device="meta")
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    monkeypatch.setattr(MemoryKinds, "_is_current_device", lambda self: True)
    memory = {"process_rss_bytes": 9e9, "cuda_allocated_bytes": 1000.0}
    assert read(MemoryKinds(Clock()), model, made, **memory) == {
        "memory_parameters_bytes": 144,
        "memory_gradients_bytes": 144,
        "memory_optimizer_bytes": 0,
        "memory_other_bytes": 712,
    }


def test_what_lies_on_another_device_is_no_part_of_the_sums() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(4, 4, device="meta"))
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    found = read(MemoryKinds(Clock()), model, made)
    assert found["memory_parameters_bytes"] == found["memory_gradients_bytes"] == 4 * (8 * 64 + 64)
