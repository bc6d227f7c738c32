"""Hangs of a real session, in this process: what is an event, where it points, and what stays silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from journals import read_journal
from torch import nn
from torch.utils.data import DataLoader, Dataset

import probe
from probe.wire import Event

STEPS = 12
HERE = Path(__file__)


def line_of(marker: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))


def hang_events(spool: Path) -> list[Event]:
    """Of all runs."""
    journals = [read_journal(path.parent) for path in spool.glob("*/run.json")]
    return [event for journal in journals for event in journal.events if event.kind == "hang"]


class Site:
    """A small training under a session of its own."""

    def __init__(self, spool: Path, hang_seconds: float) -> None:
        self.spool = spool
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        options = {"run": "run", "connect": "", "level": "basic", "hang_seconds": hang_seconds}
        self.run = probe.watch(self.model, self.optimizer, **options)

    def step(self, batch: torch.Tensor | None = None) -> None:
        self.model(torch.ones(4) if batch is None else batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wait_for_hang(self, *, count: int = 1) -> None:
        """What a script never does: go on as soon as the event is in the journal."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if sum(event.count for event in {e.id: e for e in hang_events(self.spool)}.values()) >= count:
                return
            time.sleep(0.02)
        pytest.fail("no hang event came")

    def events(self) -> list[Event]:
        self.run.close()
        return list({event.id: event for event in hang_events(self.spool)}.values())


@pytest.fixture
def start(spool: Path, one_thread: None, nothing_switched_off: None) -> Iterator[Callable[[float], Site]]:
    sites: list[Site] = []

    def make(hang_seconds: float) -> Site:
        sites.append(Site(spool, hang_seconds))
        return sites[-1]

    yield make
    for site in sites:
        site.run.close()


def test_deadlock_is_told_with_its_line_and_ends(start: Callable[[float], Site]) -> None:
    site = start(0.3)
    lock, over = threading.Lock(), threading.Event()
    lock.acquire()
    other = threading.Thread(target=lambda: (site.wait_for_hang(), lock.release()))
    third = threading.Thread(target=lambda: over.wait(60))  # stands still
    third.start()
    for step in range(STEPS):
        site.step()
        if step == 8:
            other.start()
            lock.acquire()  # guilty
    over.set()
    other.join(60)
    third.join(60)
    (event,) = site.events()
    assert (event.subject, event.severity, event.step, event.ended) == ("stuck", "warning", 9, True)
    frame = [frame for frame in event.stacks.training_loop if frame.file == str(HERE)][-1]
    assert frame.line == line_of("guilty")
    assert f"test_hang_watch.py:{line_of('guilty')}, and went on" in event.message.splitlines()[0]
    assert f"Another thread is at test_hang_watch.py:{line_of('stands still')}." in event.message
    assert event.evidence.value is not None
    assert event.evidence.threshold is not None
    assert event.evidence.value >= event.evidence.threshold >= 0.3


def in_a_thread(function: Callable[..., None], **options: int) -> threading.Thread:
    """A thread that joins it stands at one line until `function` has returned."""
    thread = threading.Thread(target=function, kwargs=options)
    thread.start()
    return thread


class Slow(Dataset[torch.Tensor]):
    """Waits at some items until the session has noticed."""

    def __init__(self, wait: Callable[[int], None]) -> None:
        self._wait = wait

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        self._wait(index)  # loader
        return torch.ones(4)


def test_slow_data_is_one_event_with_a_count(start: Callable[[float], Site]) -> None:
    site = start(0.3)

    def wait(index: int) -> None:
        if index == 6:
            in_a_thread(site.wait_for_hang).join()
        if index == 9:
            in_a_thread(site.wait_for_hang, count=2).join()

    for batch in DataLoader(Slow(wait), batch_size=1):
        site.step(batch)
    # Two lines of the dataset, and one loader that is slow.
    (event,) = site.events()
    assert (event.step, event.last_step, event.count, event.ended) == (6, 9, 2, True)
    assert "waiting for the next batch of the DataLoader" in event.message
    assert "2 times so far" in event.message
    lines = [frame.line for frame in event.stacks.training_loop if frame.file == str(HERE)]
    assert line_of("loader") in lines


def test_hang_that_is_still_there_at_the_end_is_ended(start: Callable[[float], Site]) -> None:
    site = start(0.3)
    for step in range(STEPS):
        site.step()
        if step == STEPS - 1:
            site.wait_for_hang()
            break
    (event,) = site.events()
    assert event.ended


def test_healthy_slowness_is_silent(start: Callable[[float], Site]) -> None:
    """A slow first step, steps that vary tenfold, an evaluation, and what comes after the training."""
    site = start(0.5)
    times = []
    for step in range(30):
        began = time.monotonic()
        time.sleep(0.8 if step == 0 else 0.1 if step % 5 == 0 else 0.01)
        site.step()
        times.append(time.monotonic() - began)
        if step == 20:
            look_how_good_it_is(site, 45 * median(times))
    time.sleep(max(0.8, 45 * median(times)))
    assert site.events() == []


def look_how_good_it_is(site: Site, seconds: float) -> None:
    """Its name does not say that it evaluates; that gradients are off does."""
    with torch.no_grad():
        for _ in range(5):
            site.model(torch.ones(4))
            time.sleep(0.2)
    time.sleep(max(0.8, seconds))


def test_hang_of_two_sessions_is_one_event(start: Callable[[float], Site]) -> None:
    first = start(0.3)
    model = nn.Linear(4, 2)
    second = probe.watch(model, run="second", connect="", hang_seconds=0.3)
    for step in range(STEPS):
        model(torch.ones(4)).sum().backward()
        first.step()
        if step == 8:
            first.wait_for_hang()
            time.sleep(0.3)  # the other one has looked as well
    second.close()
    assert len(first.events()) == 1
