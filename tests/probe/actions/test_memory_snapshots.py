"""Memory snapshots through the front door: what they read, their differences and trends, what a run keeps."""

from __future__ import annotations

import copy
import gc
import json
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from small_training import batches, seeded_model, train
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import probe
from probe.actions.analysis.snapshot_results import SIZES, DeviceMemory, MemorySnapshot
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.detectors.trends import t_quantile
from probe.wire import Document, decode_record
from probe.wire.documents import read_body
from probe.wire.memory_snapshots import MemorySnapshot as Body

MIB = 2**20
pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def documents(spool: Path, run: probe.Probe) -> list[tuple[str, Body]]:
    """Key and body of every snapshot in the journal, in order."""
    (writer,) = list_writers(spool / run.run)
    records = [decode_record(data) for _, data in read_stream(writer, "events")]
    return [
        (one.key, read_body(one, Body))
        for one in records
        if isinstance(one, Document) and one.kind == "memory_snapshot"
    ]


def made(
    time: float, rss: int, *, step: int | None = None, cuda: tuple[DeviceMemory, ...] = ()
) -> MemorySnapshot:
    return MemorySnapshot(
        label=f"at {time:g}",
        time=time,
        step=step,
        cause="call",
        rss_bytes=rss,
        uss_bytes=None,
        system_used_bytes=2 * rss,
        system_total_bytes=8 * rss,
        tracked_tensors=0,
        tracked_bytes=0,
        cuda_memory=cuda,
    )


def device(index: int, allocated: int) -> DeviceMemory:
    return DeviceMemory(
        device=index,
        name="H",
        allocated_bytes=allocated,
        reserved_bytes=allocated + 50,
        peak_allocated_bytes=2 * allocated,
        peak_reserved_bytes=3 * allocated,
        total_bytes=10**9,
        retries=1,
        ooms=0,
        segments=4,
    )


@pytest.mark.capability(38)
def test_snapshot_reads_what_the_system_says_and_shows_a_large_tensor() -> None:
    gc.collect()  # what other tests have left would go meanwhile
    before = probe.take_memory_snapshot("before")
    rss = psutil.Process().memory_info().rss
    kept = torch.ones(16 * MIB)
    after = probe.take_memory_snapshot("after")
    change = after - before
    # Threads of other tests take and give back memory, too: what the system says of it is compared.
    grown = psutil.Process().memory_info().rss - rss
    assert change.rss_bytes == pytest.approx(grown, abs=4 * MIB)
    assert change.uss_bytes == pytest.approx(grown, abs=4 * MIB)
    assert kept.nbytes == 64 * MIB and grown > 32 * MIB
    assert change.to_dict() == before.compare(after) == probe.compare_memory_snapshots(before, after)
    assert after.rss_bytes == pytest.approx(psutil.Process().memory_info().rss, abs=8 * MIB)
    assert after.cpu_memory_percent == pytest.approx(psutil.virtual_memory().percent, abs=10)
    assert before.time <= after.time <= time.time()
    assert "before -> after" in str(change) and "process +" in str(change)


@pytest.mark.capability(38)
def test_snapshot_has_the_old_names_as_items_and_becomes_json() -> None:
    snapshot = probe.take_memory_snapshot("checkpoint")
    assert snapshot["label"] == "checkpoint"
    assert snapshot["cpu_memory_percent"] == snapshot.cpu_memory_percent
    assert snapshot["timestamp"].endswith("+00:00")
    uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    assert (snapshot["cuda_allocated"] is None, snapshot["cuda_reserved"] is None) == (not uses_cuda,) * 2
    assert json.loads(json.dumps(snapshot)) == snapshot.to_dict() == dict(snapshot)
    again = copy.deepcopy(snapshot)
    assert again == snapshot and again.rss_bytes == snapshot.rss_bytes


def test_snapshot_without_unique_pages_knows_none() -> None:
    snapshot = probe.take_memory_snapshot("fast", uss=False)
    assert snapshot.uss_bytes is None and "its own" not in str(snapshot)
    assert (snapshot - probe.take_memory_snapshot("slow")).uss_bytes is None


def test_snapshot_counts_tracked_tensors() -> None:
    kept, before = torch.zeros(1000), probe.take_memory_snapshot(uss=False)
    probe.track_tensor(kept, "kept")
    after = probe.take_memory_snapshot(uss=False)
    assert (after.tracked_tensors - before.tracked_tensors, after.tracked_bytes - before.tracked_bytes) == (
        *(1, 4000),
    )


def test_snapshot_sums_the_devices() -> None:
    one, two = made(0.0, 100, cuda=(device(0, 100),)), made(2.0, 100, cuda=(device(0, 400), device(1, 1)))
    assert (two.cuda_allocated, two.cuda_reserved, two.cuda_peak, two.cuda_fragmentation) == (
        *(401, 501, 802, 100),
    )
    assert [(two - one)[name] for name in SIZES] == [0, None, 0, 301, 351, 602, 50]
    assert "cuda:1: allocated 1 B, reserved 51 B" in str(two)


@pytest.mark.capability(38)
@pytest.mark.parametrize("against", ["time", "step", "snapshot"])
def test_trend_is_the_line_of_numpy(against: str) -> None:
    random = np.random.default_rng(0)
    steps = np.cumsum(random.integers(1, 9, 12))
    times = 1.7e9 + 3.0 * steps
    sizes = (10**9 + 5000 * steps + random.normal(0, 10_000, 12)).astype(int)
    snapshots = [made(t, int(s), step=int(n)) for t, s, n in zip(times, sizes, steps, strict=True)]
    trend = probe.memory_trend(reversed(snapshots), against=against)  # type: ignore[arg-type]
    places = {"time": times - times[0], "step": steps, "snapshot": np.arange(12)}[against]
    (slope, _), covariance = np.polyfit(places, sizes, 1, cov=True)
    assert trend.slope == pytest.approx(slope, rel=1e-6)
    half = t_quantile(10) * covariance[0, 0] ** 0.5
    assert (trend.slope_low, trend.slope_high) == pytest.approx((slope - half, slope + half), rel=1e-4)
    assert (trend.count, trend.first_bytes, trend.is_growing) == (12, sizes[0], True)
    assert trend["slope"] == trend.slope and "grows by" in str(trend)


def test_trend_of_too_few_or_unknown_sizes_says_so() -> None:
    assert probe.memory_trend([made(0.0, 10)]).slope is None
    assert probe.memory_trend([made(0.0, 10), made(1.0, 20)], of="uss_bytes").count == 0
    assert probe.memory_trend([made(0.0, 10), made(1.0, 20)], against="step").count == 0
    assert "too few" in str(probe.memory_trend([]))
    with pytest.raises(ValueError, match="of='rss' is not available; choose one of rss_bytes"):
        probe.memory_trend([], of="rss")  # type: ignore[arg-type]


@pytest.mark.capability(38)
def test_run_keeps_the_snapshots_of_the_script(spool: Path) -> None:
    model = seeded_model()
    with probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.01)) as run:
        run.take_memory_snapshot("start")
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), 3)
        taken = probe.take_memory_snapshot("end")  # the function finds the run
    found = documents(spool, run)
    assert [(key, body.label, body.step) for key, body in found] == [
        ("start", "start", None),
        ("end, step 2", "end", 2),
    ]
    assert MemorySnapshot.of(found[1][1]) == taken == run.memory_snapshots()[-1]
    assert run.memory_trend(against="snapshot").count == 2
    assert run.take_memory_snapshot("closed").step is None and len(documents(spool, run)) == 2


@pytest.mark.capability(42)
def test_watched_run_takes_snapshots_at_its_cadence_and_at_the_end_of_epochs(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = next(batches(1))
    loader = DataLoader(TensorDataset(inputs.repeat(5, 1), targets.repeat(5)), batch_size=8)
    with probe.watch(model, optimizer, memory_snapshot_every=4) as run:
        for _ in range(2):
            for rows, classes in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(rows), classes).backward()
                optimizer.step()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len(run.memory_snapshots()) < 3:
            time.sleep(0.02)
    by_cause = [(body.cause, body.step) for _, body in documents(spool, run)]
    assert [step for cause, step in by_cause if cause == "epoch"] == [4, 9]
    cadence = [step for cause, step in by_cause if cause == "steps"]
    assert cadence and all(step is not None and 3 <= step <= 9 for step in cadence)
    assert all(one.uss_bytes and one.rss_bytes for one in run.memory_snapshots())


def test_level_without_memory_takes_none_at_the_end_of_epochs(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer, features={"memory": 0}) as run:
        train(model, optimizer, 2)
        run.end_epoch()
    assert documents(spool, run) == []


def test_training_is_the_same_with_snapshots() -> None:
    plain, watched = seeded_model(), seeded_model()
    torch.manual_seed(1)
    losses = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 6)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
    with probe.watch(watched, optimizer, memory_snapshot_every=1) as run, run.memory_tracking():
        assert train(watched, optimizer, 6) == losses
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))


@pytest.mark.gpu
@pytest.mark.capability(38)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_snapshot_reads_the_allocator_of_a_device() -> None:
    kept = torch.ones(16 * MIB, device="cuda")
    before = probe.take_memory_snapshot("before")
    more = torch.ones(MIB, device="cuda")
    after = probe.take_memory_snapshot("after")
    assert (after - before).cuda_allocated == more.nbytes
    assert after.cuda_reserved >= after.cuda_allocated >= kept.nbytes + more.nbytes  # type: ignore[operator]
    assert after.cuda_peak >= after.cuda_allocated and after.cuda_fragmentation is not None  # type: ignore[operator]


def test_snapshot_without_a_run_is_written_nowhere(spool: Path) -> None:
    assert probe.take_memory_snapshot().step is None
    assert not list(spool.glob("*"))
