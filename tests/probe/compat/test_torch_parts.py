"""What the functions of `compat` say of tensors, nodes and modules, and what where torch does not say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from probe.compat import torch_frames, torch_memory, torch_modes, torch_modules, torch_nodes


def node_of(tensor: Tensor) -> object:
    assert tensor.grad_fn is not None
    return tensor.grad_fn


def test_version_counts_writes_in_place() -> None:
    tensor = torch.zeros(2)
    before = torch_memory.version(tensor)
    tensor.add_(1)
    assert torch_memory.version(tensor) == before + 1


def test_version_of_inference_tensor_is_missing() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
    assert torch_memory.version_of(tensor) is None
    with pytest.raises(RuntimeError):
        torch_memory.version(tensor)


def test_local_shard_of_plain_tensor_is_itself() -> None:
    for tensor in (torch.zeros(2), nn.Parameter(torch.zeros(2))):
        assert torch_memory.local_shard(tensor) is tensor


def test_coo_parts_are_read_uncoalesced() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,), check_invariants=True
    )
    indices, values = torch_memory.coo_parts(sparse)
    assert (indices.tolist(), values.tolist()) == ([[1, 1]], [2.0, 3.0])


def test_output_shape_is_that_of_what_a_node_made() -> None:
    assert torch_nodes.output_shape(node_of(torch.ones(3, 1, requires_grad=True) * torch.ones(2))) == (3, 2)


def test_output_shape_of_what_is_no_node_is_missing() -> None:
    assert torch_nodes.output_shape(object()) is None


def test_saved_operands_are_those_that_the_other_needs() -> None:
    factor = torch.tensor(2.0)
    itself, other = torch_nodes.saved_operands(node_of(torch.ones(1, requires_grad=True) * factor))
    assert itself is None
    assert other is factor


def test_saved_value_is_lost_after_the_backward() -> None:
    loss = torch.ones(1, requires_grad=True).exp()
    assert torch_nodes.saved_value(node_of(loss), "nothing", 3) == 3
    node = node_of(loss)
    loss.backward()
    with pytest.raises(RuntimeError):
        torch_nodes.saved_value(node, "result")


def test_registries_of_module_without_init_are_none() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            """Leave `nn.Module.__init__` out."""

    bare = Bare()
    assert torch_modules.own_modules(bare) == {}
    assert torch_modules.registries(bare.__dict__) == []


def test_buffer_that_is_not_saved_is_not_persistent() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("passing", torch.zeros(1), persistent=False)
    assert [torch_modules.is_persistent(module, name) for name in ("kept", "passing")] == [True, False]
    assert list(torch_modules.own_buffers(module)) == ["kept", "passing"]


def test_subclass_code_does_not_run_inside_its_block() -> None:
    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, *_: object, **__: object) -> object:
            raise AssertionError("the code of a tensor's class ran")

    with torch_modes.without_subclass_code():
        assert torch.zeros(3).as_subclass(Loud).shape == (3,)


def test_loader_that_has_given_a_batch_is_known() -> None:
    batches = iter(torch.utils.data.DataLoader([1, 2, 3]))
    assert torch_frames.has_given_nothing(batches)
    next(batches)
    assert not torch_frames.has_given_nothing(batches)
    assert not torch_frames.has_given_nothing(iter([1]))
