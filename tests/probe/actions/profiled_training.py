"""A recorded training, and what its journal says of profiles; programs with a planted bottleneck."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from small_training import seeded_model, train
from torch import Tensor, nn

import probe
from probe.delivery.journal.journal_reader import read_stream
from probe.wire import Document, Event, Frame, Record, decode_record
from probe.wire.documents import read_body
from probe.wire.profiles import ProfileBody


class Session:
    """A small model that is trained under the probe, without a limit that throttles it."""

    def __init__(self, spool: Path) -> None:
        self.model = seeded_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = probe.watch(self.model, self.optimizer, spool=spool, connect="", overhead_limit=0.0)
        self.run_folder = spool / self.run.run

    def train(self, steps: int) -> list[float]:
        return train(self.model, self.optimizer, steps)

    def records(self, stream: str = "events") -> list[Record]:
        self.run.flush()
        (writer,) = self.run_folder.glob("0-*")
        return [decode_record(data) for _, data in read_stream(writer, stream)]  # type: ignore[arg-type]

    def profiles(self) -> dict[str, ProfileBody]:
        """By key."""
        found = [one for one in self.records() if isinstance(one, Document) and one.kind == "profile"]
        return {one.key: read_body(one, ProfileBody) for one in found}

    def events(self) -> list[Event]:
        return [one for one in self.records() if isinstance(one, Event) and one.kind == "profile"]

    def marked_steps(self) -> list[int]:
        return [
            one.step
            for one in self.records("metrics")
            if isinstance(one, Frame) and "profiled" in one.scalars
        ]


class SlowSet(torch.utils.data.Dataset[Tensor]):
    """A dataset whose samples take long to make."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.01)
        return torch.zeros(8)


def batches_of(dataset: torch.utils.data.Dataset[Tensor], steps: int) -> Iterator[Tensor]:
    loader = iter(torch.utils.data.DataLoader(dataset, batch_size=2))
    for _ in range(steps):
        yield next(loader)


def wide_model() -> nn.Sequential:
    """Four layers of equal size: none of them takes more than the others."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    return nn.Sequential(nn.Linear(8, 256), *layers, nn.Linear(256, 1))


def train_on(model: nn.Module, inputs: Iterable[Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in inputs:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
