"""`track_tensor`, `tracked_tensors`, `clear_memory`."""

import gc
import json
import weakref

import pytest
import torch

import probe


class Knot:
    """Holds a tensor in a reference cycle."""

    def __init__(self) -> None:
        self.me = self
        self.tensor = torch.zeros(1000)


@pytest.mark.capability(40)
def test_tracked_tensor_is_alive_until_it_is_freed() -> None:
    tensor = torch.zeros(4, 5, dtype=torch.float64)
    tracked = probe.track_tensor(tensor, "features")
    life = tracked.life()
    assert (life.name, life.shape, life.dtype, life.bytes, life.is_alive) == (
        *("features", (4, 5), "float64"),
        *(4 * 5 * 8, True),
    )
    del tensor
    freed = tracked.life()
    assert not freed.is_alive and freed.lifetime_s >= life.lifetime_s
    assert tracked.life().lifetime_s == freed.lifetime_s


@pytest.mark.capability(40)
def test_tensor_that_a_graph_holds_is_alive() -> None:
    weight = torch.ones(3, requires_grad=True)
    hidden = weight * 2
    tracked = probe.track_tensor(hidden, "hidden")
    loss = hidden.square().sum()
    del hidden
    assert tracked.life().is_alive
    del loss
    assert not tracked.life().is_alive


@pytest.mark.capability(40)
def test_tracked_tensors_are_summed_while_they_live() -> None:
    before = probe.tracked_tensors()
    kept, lost = torch.zeros(8), torch.zeros(16)
    for name, tensor in (("kept", kept), ("lost", lost)):
        probe.track_tensor(tensor, name)
    del lost, tensor
    after = probe.tracked_tensors()
    assert after.alive_bytes - before.alive_bytes == 8 * 4
    assert [life.is_alive for life in after.tensors[-2:]] == [True, False]
    assert json.loads(json.dumps(after.to_dict()))["alive_count"] == after.alive_count
    assert "kept: float32 (8,) on cpu, 32 B, alive" in str(after)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="list"):
        probe.track_tensor([1.0], "numbers")  # type: ignore[arg-type]


@pytest.mark.capability(41)
def test_clear_memory_collects_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        knot = Knot()
        reference = weakref.ref(knot.tensor)
        del knot
        assert reference() is not None
        cleared = probe.clear_memory()
    finally:
        gc.enable()
    assert reference() is None
    assert cleared.collected >= 1 and cleared.rss_after_bytes > 0
    assert (cleared.cuda_reserved_before_bytes is None) == (not torch.cuda.is_initialized())
    assert str(cleared).startswith(f"{cleared.collected} objects collected")


def test_sparse_tensor_is_tracked_with_its_indices() -> None:
    values = torch.eye(3).to_sparse()
    assert probe.track_tensor(values, "sparse").life().bytes == 3 * 4 + 2 * 3 * 8
