"""DataLoaders of a watched loop: iterators made at each step, and memory of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import probe
from probe.detectors.loader_workers import RESTARTS
from probe.loop import loader_watch
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(16, 6)), 4, **options)


def train(spool: Path, batches: Iterator[Tensor], *, steps: int) -> list[Event]:
    """Train on some batches; return what was said of loaders."""
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(steps):
            model(next(batches)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [event for event in run_of(spool).latest_events if event.subject.startswith("DataLoader")]


def one_of_a_new_iterator() -> Iterator[Tensor]:
    source = loader(num_workers=1)
    while True:
        yield next(iter(source))[0]


def one_of_a_new_loader() -> Iterator[Tensor]:
    while True:
        (batch,) = next(iter(loader(num_workers=1, shuffle=True)))
        yield batch


def first_of_each_loop() -> Iterator[Tensor]:
    source = loader(num_workers=1)
    while True:
        for (batch,) in source:
            yield batch
            break


@pytest.mark.parametrize("batches", [one_of_a_new_iterator, one_of_a_new_loader, first_of_each_loop])
def test_workers_that_start_at_each_step_are_said_with_the_line(
    spool: Path, batches: Callable[[], Iterator[Tensor]]
) -> None:
    (event,) = train(spool, batches(), steps=RESTARTS + 2)
    assert (event.kind, event.severity) == ("performance_degradation", "info")
    assert "its worker process is started and stopped each time" in event.message
    assert event.noticed_at is not None
    assert event.noticed_at.function == batches.__name__
    assert any("next(batches)" in line for line in event.advice)


def without_workers() -> Iterator[Tensor]:
    source = loader()
    while True:
        yield next(iter(source))[0]


def whole_passes() -> Iterator[Tensor]:
    source = loader()
    while True:
        for (batch,) in source:
            yield batch


@pytest.mark.parametrize("batches", [without_workers, whole_passes])
def test_loaders_without_workers_are_silent(spool: Path, batches: Callable[[], Iterator[Tensor]]) -> None:
    assert train(spool, batches(), steps=60) == []


class Keeping(TensorDataset):
    """Keeps what it gives."""

    def __init__(self) -> None:
        super().__init__(torch.randn(16, 6))
        self.kept: list[Tensor] = []

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        sample = super().__getitem__(index)
        self.kept.append(sample[0])
        return sample


def test_workers_whose_memory_grows_are_said_with_what_grows(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = count(1)
    monkeypatch.setattr(loader_watch, "private_bytes_of", lambda pid: next(levels) << 29)

    def passes() -> Iterator[Tensor]:
        source = DataLoader(Keeping(), 4, num_workers=1, persistent_workers=True)
        for _ in range(3):
            for (batch,) in source:
                yield batch

    (event,) = train(spool, passes(), steps=12)
    assert (event.kind, event.severity, event.subject) == ("memory_leak", "warning", "DataLoader workers")
    assert "grows by 512.0 MiB in each pass (32.0 MiB per sample)" in event.message
    assert "`Keeping.kept` grows at test_loader_watch.py:" in event.message
    assert event.stacks is not None
    assert event.stacks.training_loop[-1].function == "Keeping.__getitem__"
