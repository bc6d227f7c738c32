"""A session's own leak watch and its out-of-memory event, in the journal."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest
import torch
from early_arming import early_arming
from small_training import batches, seeded_model
from torch.nn import functional as F

import probe
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.detectors.resources import ResourceDetector, ResourceLimits
from probe.memory import machine_watch
from probe.memory.heap_meter import Pacer, heap_reader
from probe.memory.leak_watch import LOOKS
from probe.memory.memory_limit import MemoryUse
from probe.memory.time_slices import LookBudget, TimeSlice
from probe.wire import Event, decode_record


def events(spool: Path, run: str) -> list[Event]:
    """Every event of a run, in order."""
    (folder,) = [path for path in list_writers(spool / run) if not path.name.startswith("host-")]
    records = [decode_record(data) for _, data in read_stream(folder, "events")]
    return [record for record in records if isinstance(record, Event)]


@pytest.mark.fresh_process
@pytest.mark.capability(39)
@pytest.mark.skipif(heap_reader() is None, reason="malloc does not tell what is in use")
def test_session_writes_a_leak_with_its_line(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pacer, "note", lambda self, started_ns, took_ns, *, is_rising: None)
    monkeypatch.setattr(LookBudget, "allows", lambda self: True)
    monkeypatch.setattr(LookBudget, "open_slice", lambda self: TimeSlice(10**11))
    # The recorder's thread takes longer for it than these steps last.
    for name in LOOKS:
        importlib.import_module(name)
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with probe.watch(model, optimizer, overhead_limit=0.0) as run:
        for inputs, targets in batches(80):
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    (leak,) = [event for event in events(spool, run.run) if event.kind == "memory_leak"]
    assert (leak.severity, leak.subject) == ("warning", "losses")
    assert "losses.append(loss)" in leak.stacks.training_loop[-1].code
    assert leak.advice
    (sentence,) = run.found_leaks()
    assert sentence.startswith("Memory leak: ") and "`losses`" in sentence


@pytest.mark.capability(43)
@pytest.mark.parametrize("in_c", [True, False])
def test_session_says_what_the_recorders_thread_has_found_of_memory(
    spool: Path, monkeypatch: pytest.MonkeyPatch, in_c: bool
) -> None:
    """Whether C follows the steps or not; with the line where the training is, and a step it has had."""
    monkeypatch.setattr(machine_watch, "memory_use", lambda used, total: MemoryUse(95.0, 100.0))
    monkeypatch.setattr(
        machine_watch, "ResourceDetector", lambda *_: ResourceDetector(ResourceLimits(readings=1))
    )
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with early_arming(in_c=in_c) as followed, probe.watch(model, optimizer, overhead_limit=0.0) as run:
        for inputs, targets in batches(2000):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            time.sleep(0.005)
            if any(event.kind == "high_resource_use" for event in events(spool, run.run)):
                break
    (short,) = [event for event in events(spool, run.run) if event.kind == "high_resource_use"]
    assert bool(followed.steps) == in_c
    assert short.stacks.training_loop[-1].function.endswith("of_memory")
    assert "95% of the memory is used at step" in short.message


@pytest.mark.capability(43)
def test_session_names_the_largest_blocks_and_advises_when_memory_runs_out(spool: Path) -> None:
    model, kept = seeded_model(), torch.ones(8 * 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(RuntimeError), probe.watch(model, optimizer) as run:
        for inputs, _ in batches(2):
            model(inputs).sum().backward()
            optimizer.step()
        torch.empty(2**46)
    (event,) = {one.id: one for one in events(spool, run.run) if one.kind == "out_of_memory"}.values()
    assert event.severity == "critical" and event.advice and kept.nbytes == 32 * 2**20
    assert "Largest: 32.0 MiB `kept` in" in event.message, event.message


def test_session_says_what_was_alive_when_memory_ran_out(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(RuntimeError), probe.watch(model, optimizer) as run:
        for inputs, _ in batches(2):
            model(inputs).sum().backward()
            optimizer.step()
        torch.empty(2**46)
    event = [event for event in events(spool, run.run) if event.kind == "out_of_memory"][-1]
    assert event.evidence.value == 2**48
    assert event.evidence.baseline is not None
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert event.evidence.baseline["parameters_bytes"] == size
    assert "Asked for 256.0 TiB" in event.message
