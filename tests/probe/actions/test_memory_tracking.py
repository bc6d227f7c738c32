"""`memory_tracking`, `profile_memory` and `profile_memory_usage` through the front door, with real memory."""

from __future__ import annotations

import gc
import json
import mmap
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from small_training import seeded_model, train
from torch import nn

import probe
from probe.memory import repeated_readings
from probe.memory.repeated_readings import RepeatedReadings

MIB = 2**20
pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


@pytest.fixture(autouse=True)
def no_earlier_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_readings, "_readings", RepeatedReadings())


def resident() -> int:
    """Bytes of this process in memory, as psutil reads them."""
    return int(psutil.Process().memory_info().rss)


def megabytes(count: int) -> torch.Tensor:
    """So many MiB whose pages are all there, and new: malloc may have room that others have left in it."""
    memory = np.frombuffer(
        mmap.mmap(-1, count * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.float32
    )
    memory[:] = 1.0
    return torch.from_numpy(memory)


@pytest.mark.capability(37)
def test_block_is_measured_and_blocks_nest() -> None:
    with probe.memory_tracking():
        gc.collect()  # what other tests have left, and what the first one imports, is of neither block
    rss = [resident()]
    with probe.memory_tracking(label="outer") as outer:
        first = megabytes(48)
        rss.append(resident())
        with probe.memory_tracking(label="inner") as inner:
            second = megabytes(64)
        rss.append(resident())
        assert outer.change is None and "has not ended" in str(outer)
    rss.append(resident())
    assert inner.change is not None and outer.change is not None
    # Threads of other tests take and give back memory, too: what the system says of it is compared.
    assert inner.change.rss_bytes == pytest.approx(rss[2] - rss[1], abs=4 * MIB)
    assert outer.change.rss_bytes == pytest.approx(rss[3] - rss[0], abs=4 * MIB)
    assert inner.change.rss_bytes > second.nbytes / 2 and outer.change.rss_bytes > first.nbytes
    assert json.loads(json.dumps(outer.to_dict()))["change"]["before"] == "outer: begin"


@pytest.mark.capability(37)
def test_block_that_an_exception_leaves_is_measured_and_the_exception_goes_on() -> None:
    tracking = probe.memory_tracking(label="failing")
    with pytest.raises(KeyError), tracking as tracked:
        raise KeyError("x")
    assert tracked.after is not None and tracked.error == "KeyError" and "left by KeyError" in str(tracked)
    with tracking as again:  # entered a second time
        pass
    assert again.error is None and again is not tracked


@pytest.mark.parametrize(("enabled", "is_measured"), [(None, True), (True, True), (False, False)])
def test_block_is_measured_unless_it_is_switched_off(enabled: bool | None, is_measured: bool) -> None:
    with probe.memory_tracking(enabled) as tracked:
        pass
    assert (tracked.change is not None, tracked.memory_leaks) == (is_measured, [])


def test_block_of_a_run_is_recorded(spool: Path) -> None:
    model = seeded_model()
    with probe.watch(model) as run, run.memory_tracking(label="evaluation"):
        pass
    assert [one.label for one in run.memory_snapshots()] == ["evaluation: begin", "evaluation: end"]
    assert all(one.uss_bytes is None for one in run.memory_snapshots())


@pytest.mark.capability(37)
def test_profile_has_the_old_names_with_their_units() -> None:
    kept = megabytes(128)
    info = probe.profile_memory("training_batch")
    process = 100 * psutil.Process().memory_info().rss / psutil.virtual_memory().total
    assert info["cpu_memory"] == pytest.approx(process, rel=0.1) and info["cpu_memory"] > 0
    assert info["gpu_memory"] == pytest.approx(
        torch.cuda.memory_allocated() / MIB if torch.cuda.is_available() else 0.0
    )
    assert info["memory_leaks"] == [] and json.loads(json.dumps(info))["label"] == "training_batch"
    assert kept.nbytes == 128 * MIB


@pytest.mark.capability(37, 39)
def test_profile_suspects_a_loop_that_keeps_its_batches() -> None:
    kept = []
    for number in range(60):
        kept.append(megabytes(2))
        found = probe.profile_memory(f"batch_{number}")["memory_leaks"]
        if found:
            break
    assert 32 <= number < 60
    (sentence,) = found
    assert sentence.startswith("process memory grows at 'batch': by 2.0 MiB from call to call")


@pytest.mark.capability(37, 39)
def test_profile_suspects_nothing_in_a_steady_training() -> None:
    model = seeded_model()
    optimizer = torch.optim.AdamW(model.parameters())
    warm = [megabytes(4) for _ in range(8)]  # fills up at the start
    found = []
    for number in range(120):
        batch = megabytes(8)
        train(model, optimizer, 1)
        warm[number % 8] = megabytes(4)
        found += probe.profile_memory(f"batch_{number}")["memory_leaks"]
        with probe.memory_tracking(label="rest") as tracked:
            del batch
        found += tracked.memory_leaks
    assert found == []


def test_leak_that_a_run_has_found_is_among_the_suspicions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded_model()
    with probe.watch(model) as run:
        monkeypatch.setattr(run, "found_leaks", lambda: ["Memory leak: `losses` grows"])
        assert run.profile_memory("x").memory_leaks == ("Memory leak: `losses` grows",)
        assert probe.profile_memory("x")["memory_leaks"] == ["Memory leak: `losses` grows"]
    assert probe.profile_memory("x").memory_leaks == ()


@pytest.mark.capability(41)
def test_memory_of_a_model_is_that_of_its_tensors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.BatchNorm1d(50), nn.Linear(50, 10))
    optimizer = torch.optim.Adam(model.parameters())
    parameters = sum(p.nbytes for p in model.parameters())
    inputs = torch.ones(8, 100)
    early = probe.profile_memory_usage(model, optimizer=optimizer, input=inputs)
    assert (early.gradients, early.missing_gradients, early.optimizer_state) == (0, parameters, 0)
    model(inputs).sum().backward()
    optimizer.step()
    usage = probe.profile_memory_usage(model, optimizer=optimizer, input=inputs)
    steps = sum(state["step"].nbytes for state in optimizer.state.values())
    assert (usage.parameters, usage.gradients, usage.missing_gradients) == (parameters, parameters, 0)
    assert usage.optimizer_state == 2 * parameters + steps
    assert usage.buffers == sum(b.nbytes for b in model.buffers())
    # ReLU's output (BatchNorm and ReLU keep the same one) and BatchNorm's, which the last layer keeps.
    assert usage.activations is not None and usage.activations >= 2 * 8 * 50 * 4
    parts = (usage.parameters, usage.gradients, usage.buffers, usage.optimizer_state, usage.activations)
    assert usage["total"] == sum(parts)
    assert usage.fits and usage["available"] <= usage["capacity"] <= psutil.virtual_memory().total
    assert probe.inspect_model(model, inputs, optimizer=optimizer).memory.total == usage.total  # type: ignore[union-attr]


def test_state_of_another_models_parameters_does_not_count() -> None:
    one, other = nn.Linear(4, 4), nn.Linear(100, 100)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1, momentum=0.9)
    (one(torch.ones(2, 4)).sum() + other(torch.ones(2, 100)).sum()).backward()
    optimizer.step()
    assert probe.profile_memory_usage(one, optimizer=optimizer).optimizer_state == 20 * 4
    assert probe.profile_memory_usage(other, optimizer=[optimizer]).optimizer_state == 10_100 * 4


def test_memory_that_does_not_fit_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.actions.analysis import model_memory

    monkeypatch.setattr(model_memory, "_available", lambda device: (10, 100))
    usage = probe.profile_memory_usage(seeded_model())
    assert usage.fits is False and usage.share is not None and usage.share > 1
    assert "A training step would not fit: take a smaller batch" in str(usage)


@pytest.mark.capability(41)
def test_session_knows_its_model_and_optimizers() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with probe.watch(model, optimizer) as run:
        train(model, optimizer, 2)
        parameters = sum(p.nbytes for p in model.parameters())
        assert run.profile_memory_usage().optimizer_state == parameters
        assert run.profile_memory_usage(nn.Linear(2, 2)).optimizer_state is None
    closed = run.profile_memory_usage()
    assert closed["total"] == 0 and "no model is watched" in str(closed)
