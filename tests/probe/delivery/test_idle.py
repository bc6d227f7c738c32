"""What the recorder's thread and the helper do while nothing is trained: counted, not timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import probe
from probe.delivery.helper import shipper
from probe.delivery.recorder import hang_watch
from probe.delivery.recorder.hang_watch import HangWatch
from probe.settings.config import ProbeConfig
from probe.threads.watchdog import LoopMark, pulse
from probe.wire import RunStart

SECONDS = 20


def recorder_wakes() -> int:
    """How often the recorder's thread has slept, as the kernel counts it."""
    (thread,) = [one for one in threading.enumerate() if one.name == "nanscope-recorder"]
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary"))


def test_recorders_thread_wakes_four_times_a_second(spool: Path, one_thread: None) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = probe.watch(model, optimizer, run="run", connect="", level="basic")
    for _ in range(20):
        model(torch.ones(4)).square().mean().backward()
        optimizer.step()
    run.flush()
    time.sleep(1.0)
    wakes = []
    for _ in range(5):
        before = recorder_wakes()
        time.sleep(1.0)
        wakes.append(recorder_wakes() - before)
    run.close()
    # A wake may sleep twice: for its time, and for Python's lock. What else the machine makes it wait for
    # (a page, a lock of the kernel) comes on top, so that the quietest second counts.
    assert min(wakes) <= 2 * 4
    assert sum(wakes) >= 5


class Clock:
    """Time that passes by sleeping alone; ends what asks when it is over."""

    def __init__(self, seconds: float) -> None:
        self.now_s, self._end_s = 1000.0, 1000.0 + seconds
        self.sleeps = 0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now_s += seconds
        if self.now_s >= self._end_s:
            raise TimeoutError

    time = monotonic


def test_helper_that_has_nobody_to_ship_to_wakes_once_or_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(SECONDS)
    looks: list[float] = []
    monkeypatch.setattr(shipper, "time", clock)
    monkeypatch.setattr(shipper, "find_target", lambda connect: None)
    helper = shipper.Shipper(tmp_path / "run", None)
    monkeypatch.setattr(helper, "_is_done", lambda: False)
    monkeypatch.setattr(helper._census, "take", lambda: looks.append(clock.now_s))
    with pytest.raises(TimeoutError):
        helper.run()
    assert SECONDS - 1 <= len(looks) <= SECONDS + 1
    assert clock.sleeps <= 2 * SECONDS


class FakeLink:
    """A connection over which nothing comes."""

    ready, failed, is_full, takes_detail = True, None, False, True

    def __init__(self, wait: Callable[[float], None]) -> None:
        self._wait = wait

    def pump(self, timeout_s: float) -> list[Any]:
        if timeout_s:
            self._wait(timeout_s)
        return []

    def send(self, message: object) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def test_helper_waits_longer_while_no_trainer_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(SECONDS)
    monkeypatch.setattr(shipper, "time", clock)
    helper = shipper.Shipper(tmp_path / "run", None)
    monkeypatch.setattr(helper, "_is_done", lambda: False)
    monkeypatch.setattr(helper._census, "take", lambda: None)
    helper._link = FakeLink(clock.sleep)  # type: ignore[assignment]
    helper._heard = clock.now_s + SECONDS
    with pytest.raises(TimeoutError):
        helper.run()
    assert clock.sleeps <= 7 * SECONDS


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[HangWatch, LoopMark, Clock]:
    """Looks at a training of 40 steps that is through."""
    clock, mark = Clock(1e9), LoopMark()
    monkeypatch.setattr(
        hang_watch,
        "time",
        SimpleNamespace(monotonic=clock.monotonic, time=time.time, process_time=lambda: 0.0),
    )
    monkeypatch.setattr(pulse, "owner", mark)
    recorder: Any = SimpleNamespace(folder=tmp_path, has_helper=False, life_sign=None)
    start = RunStart(run="run", rank=0, incarnation=1, pid=1, time=1.0)
    steps = iter(range(40))
    made = HangWatch(
        start,
        "model",
        config=ProbeConfig(hang_seconds=1.0),
        recorder=recorder,
        mark=mark,
        last_step=lambda: next(steps, 39),
    )
    for _ in range(40):
        pulse.beats += 1
        clock.now_s += 0.02
        made.look()
    return made, mark, clock


def looks_of(watch: HangWatch, clock: Clock) -> list[Any]:
    """The events of a minute in which this thread stands here, and another one looks."""
    events: list[Any] = []

    def look() -> None:
        for _ in range(120):
            clock.now_s += 0.5
            events.extend(watch.look())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    return events


def mark_loop(mark: LoopMark) -> None:
    for _ in range(1):
        mark.take(hang_watch.raw_stack(hang_watch.sys._getframe(), limit=64))


def train_and_rest(watch: tuple[HangWatch, LoopMark, Clock]) -> list[Any]:
    """The events of a minute behind the loop."""
    made, mark, clock = watch
    mark_loop(mark)
    return looks_of(made, clock)


def test_thread_that_stays_where_it_was_is_judged_once(
    watch: tuple[HangWatch, LoopMark, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[object] = []
    place_of = hang_watch.place_of

    def count(*arguments: Any) -> Any:
        judged.append(arguments)
        return place_of(*arguments)

    monkeypatch.setattr(hang_watch, "place_of", count)
    with ThreadPoolExecutor(1) as alone:
        # Not below the loops of what runs the tests: a worker of theirs counts as the script.
        events = alone.submit(train_and_rest, watch).result()
    assert events == []
    # The first look may come before this thread has begun to wait for the other.
    assert 1 <= len(judged) <= 2


def test_thread_that_stays_in_its_loop_is_a_hang(watch: tuple[HangWatch, LoopMark, Clock]) -> None:
    made, mark, clock = watch
    for _ in range(1):
        mark.take(hang_watch.raw_stack(hang_watch.sys._getframe(), limit=64))
        events = looks_of(made, clock)
    assert events and events[0].subject == "stuck"


def evaluate(made: HangWatch, clock: Clock) -> list[Any]:
    """By its name it may well take long, but not for ever."""
    return looks_of(made, clock)


def test_other_work_without_end_becomes_a_hang(watch: tuple[HangWatch, LoopMark, Clock]) -> None:
    made, mark, clock = watch
    for _ in range(1):
        mark.take(hang_watch.raw_stack(hang_watch.sys._getframe(), limit=64))
        events = evaluate(made, clock)
    assert events
    assert events[0].evidence.value >= 12 * events[0].evidence.threshold
