"""How far an epoch is, out of a DataLoader's length: real loaders, plain loops, the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_training import seeded_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import probe
from probe.loop.open_passes import EpochPlace

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


class Loop:
    """A watched model, and where its progress sees it after each step."""

    def __init__(self, *, accumulate: int = 1, **options: Any) -> None:
        self.model = seeded_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = probe.watch(self.model, self.optimizer, **options)
        self.accumulate, self._backwards = accumulate, 0
        self.places: list[EpochPlace | None] = []

    def take(self, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(self.model(x), y).backward()
        self._backwards += 1
        if self._backwards % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.places.append(self.place)

    @property
    def place(self) -> EpochPlace | None:
        assert self.run._tracker is not None
        return self.run._tracker.epochs.place()

    def evaluate(self, loader: DataLoader[Any]) -> None:
        self.model.eval()
        with torch.no_grad():
            for x, _ in loader:
                self.model(x)
        self.model.train()


def data(samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 6), torch.arange(samples) % 3)


def loader(samples: int = 24, **options: Any) -> DataLoader[Any]:
    """Batches of 4."""
    return DataLoader(data(samples), **{"batch_size": 4, **options})


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.run.close()


@pytest.mark.capability(63)
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}, {"batch_size": None}])
def test_length_is_known_in_the_first_epoch_from_the_second_step_on(
    loop: Loop, options: dict[str, Any]
) -> None:
    batches = loader(26, **options)
    for _ in range(2):
        for x, y in batches:
            loop.take(x.reshape(-1, 6).repeat(2, 1), y.repeat(2))
    steps, exact = len(batches), [EpochPlace(0, len(batches), False)]
    assert loop.places[:steps] == [None, *exact * (steps - 1)]
    # The first step of the second epoch is taken to be one of an epoch like the first.
    second = [EpochPlace(steps, steps, True), *[EpochPlace(steps, steps, False)] * (steps - 1)]
    assert loop.places[steps:] == second


def test_accumulation_counts_steps_and_not_batches() -> None:
    loop = Loop(accumulate=3)
    for x, y in loader(56):
        loop.take(x, y)
    loop.run.close()
    # 14 batches: four steps, and two batches that make none.
    assert loop.places[2:] == [EpochPlace(0, 4, True)] * 2 and set(loop.places[:2]) == {None}


def test_evaluation_within_an_epoch_is_no_epoch(loop: Loop) -> None:
    testing = loader(16)
    for x, y in loader():
        loop.take(x, y)
        loop.evaluate(testing)
        assert loop.place in (None, EpochPlace(0, 6, False))
    assert loop.places[-1] == EpochPlace(0, 6, False)


def test_iterator_of_another_loader_that_stays_open_is_no_epoch(loop: Loop) -> None:
    for step, (x, y) in enumerate(loader(80)):
        if step == 1:
            others = iter(loader(400))
            next(others)
        loop.take(x, y)
    assert set(loop.places[2:]) == {EpochPlace(0, 20, False)}


def test_shorter_of_two_loaders_that_are_read_together_ends_the_epoch(loop: Loop) -> None:
    for (x, y), _ in zip(loader(40), loader(24), strict=False):
        loop.take(x, y)
    assert loop.places[-1] == EpochPlace(0, 6, False)


class Counted(Dataset[Any]):
    """A dataset that writes down what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return torch.randn(6), index % 3


class Drawing(Sampler[int]):
    """A sampler whose length costs random numbers."""

    def __len__(self) -> int:
        return len(list(self))

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(24).tolist())


class Endless(IterableDataset[Any]):
    """Says a length that it does not have."""

    def __len__(self) -> int:
        return 1000

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.randn(6), 0)] * 24)


@pytest.mark.capability(63)
@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": Drawing()}], ids=["shuffled", "drawing"])
def test_samples_and_random_numbers_are_those_without_the_probe(options: dict[str, Any]) -> None:
    found = []
    for is_watched in (True, False):
        dataset, loop = Counted(), Loop()
        if not is_watched:
            loop.run.close()
        torch.manual_seed(4)
        batches = DataLoader(dataset, 4, **options)
        seen = [x for _ in range(2) for x in read(batches, loop, is_watched=is_watched)]
        found.append((dataset.asked, torch.stack(seen), torch.get_rng_state()))
        loop.run.close()
    (asked, seen, state), (plain_asked, plain_seen, plain_state) = found
    assert asked == plain_asked and torch.equal(seen, plain_seen) and torch.equal(state, plain_state)


def read(batches: DataLoader[Any], loop: Loop, *, is_watched: bool) -> Iterator[torch.Tensor]:
    for x, y in batches:
        if is_watched:
            loop.take(x, y)
        else:
            F.cross_entropy(loop.model(x), y).backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        yield x


@pytest.mark.parametrize("batches", [DataLoader(Endless(), 4), DataLoader(Counted(), 4, sampler=Drawing())])
def test_length_that_only_the_script_knows_is_learnt_from_the_first_epoch(
    loop: Loop, batches: DataLoader[Any]
) -> None:
    for _ in range(2):
        for x, y in batches:
            loop.take(x, y)
    assert set(loop.places[:6]) == {None} and set(loop.places[6:]) == {EpochPlace(6, 6, True)}


def test_told_epochs_leave_the_loaders_alone(loop: Loop) -> None:
    for step, (x, y) in enumerate(loader()):
        loop.take(x, y)
        if step == 3:
            assert loop.run._tracker is not None
            loop.run._tracker.epochs.end_epoch()
    assert loop.places[-1] != EpochPlace(0, 6, False)
