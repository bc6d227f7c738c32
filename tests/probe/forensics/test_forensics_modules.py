"""Names of running modules, and the private symbols of torch."""

import threading
import tracemalloc

import pytest
import torch
from replayed_step import Lambda, batch
from torch import nn

from probe.compat import availability, torch_memory
from probe.forensics.running_modules import ModuleTracker, clean_name


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("module.layers.0", "layers.0"),
        ("_orig_mod.module.layers.0", "layers.0"),
        ("module", ""),
        ("layers._checkpoint_wrapped_module.0._fsdp_wrapped_module.weight", "layers.0.weight"),
        ("layers.module.weight", "layers.module.weight"),
    ],
)
def test_clean_name_drops_wrappers_only(name, clean):
    assert clean_name(name) == clean


def _tracked(model, *, thread=False):
    seen = []
    tracker = ModuleTracker([model])
    model[1].function = lambda x: seen.append(tracker.current) or x
    with tracker.running(model):
        seen.append(tracker.current)
        model(batch())
    return seen, tracker


def test_tracker_names_the_innermost_module():
    seen, tracker = _tracked(nn.Sequential(nn.Linear(4, 4), Lambda(None)))
    assert seen == ["", "1"]
    assert tracker.current is None


def test_tracker_gives_a_module_made_in_forward_its_parents_name():
    tracker, seen = None, []
    model = Lambda(lambda x: Lambda(lambda y: seen.append(tracker.current) or y)(x))
    tracker = ModuleTracker([model])
    with tracker.running(model):
        model(batch())
    assert seen == [""]


def test_tracker_ignores_modules_of_other_threads():
    model = nn.Sequential(nn.Linear(4, 4))
    tracker, seen = ModuleTracker([model]), []

    def other():
        Lambda(lambda x: seen.append(tracker.current) or x)(batch())

    with tracker.running(model):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
    assert seen == [""]


def test_private_symbols_are_all_there_in_the_supported_torch():
    assert all(availability.available().values())


def test_version_of_an_inference_tensor_is_none():
    with torch.inference_mode():
        tensor = torch.zeros(2)
    assert torch_memory.version_of(tensor) is None


def test_storage_key_of_a_sparse_tensor_is_that_of_its_values():
    indices, values = torch.tensor([[0, 2]]), torch.ones(2)
    sparse = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=True)
    assert torch_memory.storage_key(sparse) == values.data_ptr()


def test_storage_key_of_an_empty_tensor_is_zero():
    assert torch_memory.storage_key(torch.empty(0)) == 0


def test_storage_key_is_one_for_all_views():
    base = torch.ones(4, 6)
    for view in (base[2:, 1:], base.t()[3:], base[1].view(torch.int32)[2:], base[3:0]):
        assert torch_memory.storage_key(view) == base.data_ptr()
    assert torch_memory.storage_key(torch.empty(3, device="meta")[1:]) == 0


def test_storage_keys_leave_nothing_behind_with_the_tensors():
    tensors = [torch.ones(2) for _ in range(500)]
    torch_memory.storage_key(tensors[0])
    tracemalloc.start()
    for tensor in tensors:
        torch_memory.storage_key(tensor)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4096
