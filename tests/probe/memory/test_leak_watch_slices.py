"""The leak watch in slices: finds what it finds at once, never asks for all objects, keeps to its budget."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from probe.memory import heap_walk
from probe.memory.heap_looks import Look
from probe.memory.heap_meter import Pacer
from probe.memory.heap_walk import HeapWalk
from probe.memory.leak_reports import MemoryIncident
from probe.memory.leak_watch import LeakWatch
from probe.memory.time_slices import LookBudget, TimeSlice

MIB = 2**20
pytestmark = pytest.mark.usefixtures("one_thread")


class EveryStep(Pacer):
    """Reads at every step."""

    def note(self, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
        return


class Pieces(TimeSlice):
    """Over after so many looks at the clock, late after 50 more."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.left = pieces

    def is_over(self) -> bool:
        self.left -= 1
        return self.left <= 0

    def is_late(self) -> bool:
        return self.left <= -50


class Budget(LookBudget):
    """Hands out small slices, or none."""

    def __init__(self, *, pieces: int, is_open: bool = True) -> None:
        super().__init__()
        self.pieces, self.is_open = pieces, is_open
        self.spent: list[int] = []

    def allows(self) -> bool:
        return self.is_open

    def open_slice(self) -> TimeSlice:
        return Pieces(self.pieces)

    def note(self, spent_ns: int) -> None:
        self.spent.append(spent_ns)


class GrowingHeap:
    """A heap that grows by a mebibyte at every reading."""

    def __init__(self) -> None:
        self.mib = 100

    def __call__(self) -> float:
        self.mib += 1
        return float(self.mib * MIB)


def watch_of(budget: LookBudget) -> LeakWatch:
    return LeakWatch(read_heap=GrowingHeap(), read_process=lambda: 1.0, pacer=EveryStep(), budget=budget)


def train(watch: LeakWatch, steps: int) -> list[MemoryIncident]:
    """Keep every loss with its graph, in a model of some hundred modules."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(100)])
    kept: list[Tensor] = []
    found: list[MemoryIncident] = []
    for number in range(steps):
        kept.append(model(torch.ones(1, 4)).sum())
        found += watch.follow(number, sys._getframe())
        if found:
            break
    return found


@pytest.fixture
def tests_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pytest and all other tests hold is not looked at: that takes a second each time."""
    monkeypatch.setattr(heap_walk, "_all_frames", lambda frame: [frame])
    monkeypatch.setattr(heap_walk, "module_names", lambda *, is_wide: ["torch.utils"] if is_wide else [])


@pytest.fixture
def objects_refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody asks the garbage collector for all objects."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a list of all objects holds training up for as long as it takes")

    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_objects", refuse)
        patch.setattr(gc, "get_referrers", refuse)
        yield


@pytest.mark.usefixtures("tests_not_walked", "objects_refused")
@pytest.mark.parametrize("pieces", [10, 10**9])
def test_leak_is_found_by_name_and_line_however_short_the_slices(pieces: int) -> None:
    budget = Budget(pieces=pieces)
    (incident,) = train(watch_of(budget), 3000)
    assert incident.finding.subject == "kept"
    assert "kept.append" in incident.finding.message
    assert incident.finding.baseline is not None
    assert incident.finding.baseline["items_per_step"] == 1.0
    assert (len(budget.spent) > 20) == (pieces == 10)


def test_slices_that_are_over_at_once_do_a_bounded_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    go_on = HeapWalk.go_on

    def counted(self: HeapWalk, *args: Any) -> None:
        before = len(self.parents)
        go_on(self, *args)
        found.append(len(self.parents) - before - len(self.accesses) * (not before))

    monkeypatch.setattr(HeapWalk, "go_on", counted)
    watch = watch_of(Budget(pieces=1))
    samples = [[number] for number in range(100_000)]
    train(watch, 60)
    assert len(samples) == 100_000
    assert len(found) > 20
    assert max(found) < 51 * 300


@pytest.mark.usefixtures("tests_not_walked")
def test_leak_beside_a_large_data_set_is_found_when_every_slice_is_late() -> None:
    samples = [[(number, [number]) for number in range(100)] for _ in range(1000)]
    watch = watch_of(Budget(pieces=-30))
    (incident,) = train(watch, 3000)
    assert len(samples) == 1000
    assert incident.finding.subject == "kept"


def test_no_look_is_taken_without_a_budget() -> None:
    watch = watch_of(Budget(pieces=10**9, is_open=False))
    assert train(watch, 100) == []
    assert watch.looks == 0


@pytest.mark.usefixtures("tests_not_walked")
def test_what_a_slice_took_is_taken_off_the_budget() -> None:
    budget = Budget(pieces=10**9)
    watch = watch_of(budget)
    train(watch, 100)
    assert len(budget.spent) == watch.looks > 1
    assert min(budget.spent) > 0


@pytest.mark.usefixtures("tests_not_walked")
def test_leak_in_a_library_is_found_once_the_script_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils, "kept_for_ever", [], raising=False)
    watch = watch_of(Budget(pieces=10**9))
    model = nn.Linear(4, 4)
    found: list[MemoryIncident] = []
    for number in range(1500):
        torch.utils.kept_for_ever.append(model(torch.ones(1, 4)).sum())  # type: ignore[attr-defined]
        found += watch.follow(number, sys._getframe())
        if found:
            break
    assert found[0].finding.subject == "torch.utils.kept_for_ever"


class CountedHeap(GrowingHeap):
    """Counts its readings."""

    readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return super().__call__()


@pytest.mark.usefixtures("tests_not_walked")
def test_no_step_has_both_a_reading_of_the_heap_and_a_slice() -> None:
    heap = CountedHeap()
    watch = LeakWatch(read_heap=heap, read_process=lambda: 1.0, pacer=EveryStep(), budget=Budget(pieces=10))
    model = nn.Linear(4, 4)
    kept: list[Tensor] = []
    slices = 0
    for number in range(300):
        kept.append(model(torch.ones(1, 4)).sum())
        before = heap.readings, watch.looks
        watch.follow(number, sys._getframe())
        read, looked = heap.readings - before[0], watch.looks - before[1]
        assert read + looked <= 1
        slices += looked
    assert slices > 5


class SlowHeap(CountedHeap):
    """Has so many free pieces that a reading takes four milliseconds."""

    def __call__(self) -> float:
        started = time.thread_time()
        while time.thread_time() - started < 0.004:
            pass
        return super().__call__()


@pytest.mark.usefixtures("tests_not_walked")
def test_a_heap_that_is_slow_to_read_is_given_up_for_the_process() -> None:
    heap, clock = SlowHeap(), iter(range(10**9))
    pages = (float(number * MIB) for number in itertools.count(1000))
    watch = LeakWatch(
        clock_ns=lambda: next(clock) * 100_000_000,
        read_heap=heap,
        read_process=lambda: next(pages),
        pacer=EveryStep(),
        budget=Budget(pieces=10**9),
    )
    model = nn.Linear(4, 4)
    kept: list[Tensor] = []
    found: list[MemoryIncident] = []
    for number in range(600):
        kept.append(model(torch.ones(1, 4)).sum())
        found += watch.follow(number, sys._getframe())
    assert heap.readings == 3
    leaks = [incident.finding for incident in found if incident.finding.kind == "memory_leak"]
    assert [leak.subject for leak in leaks] == ["kept"]


def test_a_single_slow_reading_gives_nothing_up() -> None:
    heap = SlowHeap()
    watch = LeakWatch(read_heap=heap, read_process=lambda: 1.0, pacer=EveryStep())
    for number in range(2):
        watch.follow(number, None)
    heap.__class__ = CountedHeap
    for number in range(2, 20):
        watch.follow(number, None)
    assert heap.readings >= 19


@pytest.mark.parametrize(("share", "is_rising"), [(0.0001, False), (0.0005, True)])
@pytest.mark.parametrize(("step_ms", "took_us"), [(2, 100), (13, 250), (350, 500), (350, 100), (5000, 400)])
def test_readings_take_their_share_of_the_time_whatever_the_steps(
    step_ms: int, took_us: int, share: float, is_rising: bool
) -> None:
    """At first 0.5 % of it, where a single one is not shorter than that; after half a minute `share`."""
    pacer = Pacer()
    read_at_s: list[float] = []
    for step in range(600_000 // step_ms):
        now_ns = step * step_ms * 1_000_000
        if now_ns >= pacer.next_ns:
            read_at_s.append(now_ns / 1e9)
            pacer.note(now_ns, took_us * 1000, is_rising=is_rising)
    later = [at for at in read_at_s if at > 31.0]
    assert len(later) * took_us * 1e-6 <= share * 570.0 + 2 * took_us * 1e-6
    # No rarer than that, either, as far as there are steps.
    assert len(later) >= min(share * 560.0 / (took_us * 1e-6), 560.0 / (step_ms / 1e3)) * 0.75
    early = [at for at in read_at_s if at <= 30.0]
    assert len(early) >= min(40, 30_000 // step_ms)


@pytest.mark.parametrize("slow_us", [350, 500, 900])
def test_first_readings_are_soon_enough_for_a_training_of_a_second(slow_us: int) -> None:
    """Growth takes 21 readings to see; on a busy machine, or of a large heap, each takes a little longer."""
    pacer, read = Pacer(), 0
    for now_ns in range(0, 1_200_000_000, 2_000_000):
        if now_ns >= pacer.next_ns:
            read += 1
            pacer.note(now_ns, slow_us * 1000)
    assert read >= 21


def test_first_readings_that_are_slow_take_no_more_together_than_quick_ones() -> None:
    pacer, spent_ns = Pacer(), 0
    for now_ns in range(0, 20_000_000_000, 1_000_000):
        if now_ns >= pacer.next_ns:
            pacer.note(now_ns, 2_000_000)
            spent_ns += 2_000_000
    # 128 of 0.3 ms, then 0.5 % of the time.
    assert spent_ns <= 128 * 300_000 + 0.005 * 20_000_000_000 + 2_000_000


class SlowLoop:
    """A loop of half a second a step whose memory grows from a step on, followed by C.

    The recorder's thread looks for news four times a second.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, grows_from: int, bytes_per_step: int) -> None:
        self.step = 0
        self.read_at: list[int] = []
        self.grows_from, self.bytes_per_step = grows_from, bytes_per_step
        self.took_ns = 500_000
        self.cpu_ns = 0
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.cpu_ns)
        self.watch = LeakWatch(
            clock_ns=lambda: self.step * 500_000_000, read_heap=self.heap, read_process=lambda: None
        )

    def heap(self) -> float:
        """A reading takes half a millisecond."""
        self.cpu_ns += self.took_ns
        self.read_at.append(self.step)
        scatter = self.step * 7919 % 300
        return 1e9 + scatter + max(self.step - self.grows_from, 0) * self.bytes_per_step

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            if self.watch.wants:
                self.watch.follow(self.step, None)


def test_slow_readings_of_a_steady_heap_are_at_every_tenth_step(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SlowLoop(monkeypatch, grows_from=10_000, bytes_per_step=0)
    loop.run(1000)
    later = [step for step in loop.read_at if step > 100]
    assert {after - before for before, after in itertools.pairwise(later)} == {10}


@pytest.mark.parametrize("bytes_per_step", [20_000, MIB])
def test_leak_that_begins_late_in_slow_steps_is_suspected_within_30_steps(
    monkeypatch: pytest.MonkeyPatch, bytes_per_step: int
) -> None:
    """A minute after the start; 111 steps where readings stay as rare as those of a steady heap."""
    loop = SlowLoop(monkeypatch, grows_from=120, bytes_per_step=bytes_per_step)
    loop.run(120)
    assert not loop.watch.is_looking
    loop.run(30)
    assert loop.watch.is_looking


def test_tensors_that_torch_compile_traces_are_not_counted() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    traced = mode.from_tensor(torch.ones(5, 3), symbolic_context=sizes)
    with pytest.raises(TypeError, match="unhashable"):
        hash(traced.shape)
    look = Look(step=0)
    for tensor in (traced, torch.ones(5, 3), traced, torch.ones(5, 3)):
        look.note_tensor(tensor)
    assert look.tensors == {(torch.Size((5, 3)), torch.float32, torch.device("cpu")): 2}
