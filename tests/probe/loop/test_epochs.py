"""Epochs as a script makes them with DataLoaders, and the memory that is read at their ends."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from early_arming import early_arming
from run_numbers import run_of
from small_training import seeded_model
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import probe
from probe.actions.analysis.run_report import read_report
from probe.attach.call_wrappers import is_own_frame
from probe.loop.open_passes import EpochPlace

pytestmark = pytest.mark.usefixtures("one_thread")
MIB = 2**20
TORCHS_OWN = DataLoader.__iter__, _BaseDataLoaderIter.__next__


@pytest.fixture(autouse=True)
def loaders_are_as_they_were() -> Iterator[None]:
    yield
    assert (DataLoader.__iter__, _BaseDataLoaderIter.__next__) == TORCHS_OWN


class Loop:
    """A watched model, and a step of its training."""

    def __init__(self, **options: Any) -> None:
        self.model = seeded_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = probe.watch(self.model, self.optimizer, overhead_limit=0.0, **options)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def loader(samples: int = 12, **options: Any) -> DataLoader[Any]:
    """Batches of 4."""
    return DataLoader(TensorDataset(torch.randn(samples, 6), torch.arange(samples) % 3), 4, **options)


def epochs_of(spool: Path) -> dict[int, float]:
    """The series `epoch`, by step."""
    frames = run_of(spool).frames
    return {frame.step: frame.scalars["epoch"] for frame in frames if "epoch" in frame.scalars}


def evaluate(model: nn.Module, batches: DataLoader[Any]) -> None:
    with torch.no_grad():
        for x, _ in batches:
            model(x)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_epoch_is_a_pass_over_the_loader_that_trains(spool: Path, options: dict[str, Any]) -> None:
    loop, training, testing = Loop(), loader(**options), loader(8)
    with loop.run:
        evaluate(loop.model, testing)
        for _ in range(2):
            for index, (x, y) in enumerate(training):
                loop.step(x, y)
                if index == 1:
                    evaluate(loop.model, testing)
            evaluate(loop.model, testing)
    assert epochs_of(spool) == {2: 1.0, 5: 2.0}


@pytest.mark.parametrize("in_c", [True, False])
def test_epochs_count_on_while_c_follows_the_steps(spool: Path, in_c: bool) -> None:
    with early_arming(in_c=in_c) as followed:
        loop, training = Loop(), loader(28)
        with loop.run:
            for _ in range(6):
                for x, y in training:
                    loop.step(x, y)
            assert loop.run._tracker is not None
            count, place = loop.run._tracker.epochs.count, loop.run._tracker.epochs.place()
    assert (followed.steps > 20) == in_c
    assert (count.ended, count.steps, count.newest_steps) == (6, 42, 7)
    assert place == EpochPlace(42, 7, True)
    assert epochs_of(spool) == {7 * epoch - 1: float(epoch) for epoch in range(1, 7)}


def test_pass_that_was_under_way_when_the_session_began_is_an_epoch(spool: Path) -> None:
    passes, loop = iter(loader()), None
    for x, y in passes:
        loop = loop or Loop()
        loop.step(x, y)
    assert loop is not None
    with loop.run:
        for x, y in loader():
            loop.step(x, y)
    assert epochs_of(spool) == {2: 1.0, 5: 2.0}


def test_of_the_passes_that_nobody_saw_begin_one_is_an_epoch(spool: Path) -> None:
    training, other = iter(loader()), iter(loader(8))
    loop = Loop()
    with loop.run:
        for x, y in training:
            loop.step(x, y)
        loop.step(x, y)
        evaluated = sum(1 for _ in other)
    assert (evaluated, epochs_of(spool)) == (2, {2: 1.0})


def test_pass_under_way_with_no_step_in_it_is_no_epoch(spool: Path) -> None:
    seen = iter(loader())
    loop = Loop()
    with loop.run:
        assert sum(1 for _ in seen) == 3
        for x, y in loader():
            loop.step(x, y)
    assert epochs_of(spool) == {2: 1.0}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(torch.randn(6, 6), torch.arange(6) % 3, strict=True)


def test_epoch_of_a_dataset_without_a_length_is_seen(spool: Path) -> None:
    loop = Loop()
    with loop.run:
        for _ in range(2):
            for x, y in DataLoader(Stream(), batch_size=4):
                loop.step(x, y)
    assert epochs_of(spool) == {1: 1.0, 3: 2.0}


def test_pass_that_is_left_early_is_no_epoch(spool: Path) -> None:
    loop, training = Loop(), loader()
    with loop.run:
        for _ in range(3):
            loop.step(*next(iter(training)))
        for x, y in training:
            loop.step(x, y)
            break
    assert epochs_of(spool) == {}


def test_two_loaders_that_run_out_together_end_one_epoch(spool: Path) -> None:
    loop = Loop()
    with loop.run:
        first, second = iter(loader()), iter(loader())
        for x, _ in first:
            loop.step(x, next(second)[1])
        with pytest.raises(StopIteration):
            next(second)
    assert epochs_of(spool) == {2: 1.0}


def test_passes_of_another_thread_are_no_epochs(spool: Path) -> None:
    loop, loaded = Loop(), []
    with loop.run:
        loop.step(torch.ones(4, 6), torch.zeros(4, dtype=torch.long))
        prefetching = threading.Thread(target=lambda: loaded.extend(loader()))
        prefetching.start()
        prefetching.join()
        for x, y in loaded:
            loop.step(x, y)
    assert len(loaded) == 3
    assert epochs_of(spool) == {}


def test_end_epoch_counts_from_the_first_call_on_alone(spool: Path) -> None:
    loop, training = Loop(), loader()
    with loop.run:
        for _ in range(2):
            for x, y in training:
                loop.step(x, y)
            for x, y in training:
                loop.step(x, y)
            loop.run.end_epoch()
    assert epochs_of(spool) == {2: 1.0, 5: 1.0, 11: 2.0}


def test_epoch_that_ends_amid_an_accumulation_is_told_with_the_step_that_ends_that(spool: Path) -> None:
    loop = Loop()
    with loop.run:
        for _ in range(2):
            for index, (x, y) in enumerate(loader(20)):
                F.cross_entropy(loop.model(x), y).backward()
                if index % 2:
                    loop.optimizer.step()
                    loop.optimizer.zero_grad()
    assert epochs_of(spool) == {2: 1.0, 3: 2.0}


def test_memory_at_the_end_of_each_epoch_is_what_the_process_holds(spool: Path) -> None:
    gc.collect()  # what other tests have left would go meanwhile
    loop, held, expected = Loop(), [], []
    with loop.run:
        for _ in range(3):
            for x, y in loader():
                loop.step(x, y)
                held.append(torch.full((8 * MIB,), 1.0))
            expected.append(psutil.Process().memory_info().rss)
            # Readings are a second apart, or they would cost more than they tell.
            loop.run._tracker.epochs._meters._epoch_read_ns = 0
    (writer,) = spool.glob("*/0-*")
    reported = read_report(writer).epochs
    assert [(one.epoch, one.step) for one in reported] == [(1, 2), (2, 5), (3, 8)]
    assert [one.process_rss_bytes for one in reported] == pytest.approx(expected, abs=8 * MIB)
    assert expected[2] - expected[0] > 150 * MIB
    assert all(one.cuda_allocated_bytes is None for one in reported) or torch.cuda.is_available()


def test_memory_is_not_read_at_epochs_where_it_is_not_to_be(spool: Path) -> None:
    loop = Loop(features={"memory": 0})
    with loop.run:
        for x, y in loader():
            loop.step(x, y)
    (last,) = (frame for frame in run_of(spool).frames if "epoch" in frame.scalars)
    assert "process_rss_bytes" not in last.scalars


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise KeyError(index)


def test_exception_of_a_dataset_comes_through_as_it_was(spool: Path) -> None:
    loop = Loop()
    with loop.run, pytest.raises(KeyError) as raised:
        for x, y in DataLoader(Broken()):
            loop.step(x, y)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-1] == "__getitem__"
    own = [entry for entry in raised.traceback if is_own_frame(entry.frame.raw)]
    assert len(own) <= 1


def test_debug_report_has_a_table_of_epochs(tmp_path: Path) -> None:
    loop = Loop()
    with loop.run:
        for _ in range(2):
            for x, y in loader():
                loop.step(x, y)
        # The newest step is written when the next one begins.
        loop.step(x, y)
        assert [one.step for one in loop.run.get_debug_summary().recorded.epochs] == [2, 5]
        loop.run.save_debug_report(tmp_path / "report.txt")
    text = (tmp_path / "report.txt").read_text()
    header = text.index("epoch  last step")
    assert [line.split()[:2] for line in text[header:].splitlines()[2:4]] == [["1", "2"], ["2", "5"]]
