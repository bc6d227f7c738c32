"""Leaks in real training loops: what grows is named with its line, and healthy loops stay silent."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from patient_watch import AllTheTime, EveryStep, patient_watch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from probe.delivery.host_memory import MemorySample
from probe.memory.heap_looks import Look, more_tensors
from probe.memory.heap_meter import heap_reader, own_bytes
from probe.memory.leak_reports import MemoryIncident
from probe.memory.leak_watch import LeakWatch
from probe.memory.open_look import OpenLook
from probe.memory.time_slices import TimeSlice

STEPS = 60
MIB = 2**20
pytestmark = [
    pytest.mark.fresh_process,
    pytest.mark.skipif(heap_reader() is None, reason="malloc does not tell what is in use"),
    pytest.mark.usefixtures("one_thread"),
]


class Watched:
    """A loop's watch, and what it has found."""

    def __init__(self) -> None:
        self.watch = patient_watch()
        self.found: list[MemoryIncident] = []

    def step(self, number: int) -> None:
        self.found += self.watch.follow(number, sys._getframe(1))

    @property
    def only(self) -> MemoryIncident:
        (incident,) = self.found
        assert incident.finding.kind == "memory_leak"
        assert incident.finding.severity == "warning"
        return incident


@pytest.fixture
def watched() -> Iterator[Watched]:
    torch.manual_seed(0)
    gc.collect()
    yield Watched()
    gc.collect()


class Net(nn.Module):
    """Two layers; may keep what it computes."""

    def __init__(self, keep: Callable[[Net, Tensor], None] = lambda net, hidden: None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 3)
        self.keep, self.kept, self.calls = keep, {}, 0
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        self.calls += 1
        self.keep(self, hidden)
        return self.second(hidden)


def loss_of(net: nn.Module) -> Tensor:
    x = torch.randn(8, 16)
    return F.cross_entropy(net(x), x.argmax(1) % 3)


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def line_of(text: str) -> int:
    """Line of this file with the comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return number


def assert_at(incident: MemoryIncident, comment: str) -> None:
    frame = incident.stack[-1]
    assert (Path(frame.file).name, frame.line) == (Path(__file__).name, line_of(comment))
    assert comment in frame.code


def test_leaks_losses_with_their_graphs(watched: Watched) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for number in range(STEPS):
        loss = loss_of(net)
        update(optimizer, loss)
        watched.step(number)
        losses.append(loss)  # losses with their graphs
    finding = watched.only.finding
    assert finding.subject == "losses"
    assert "grows by about one Tensor per step, each with the graph that made it" in finding.message
    assert "test_leaks_losses_with_their_graphs" in finding.message
    assert_at(watched.only, "losses with their graphs")
    assert finding.baseline is not None and finding.baseline["items_per_step"] == 1.0


def test_leaks_running_sum_with_graph(watched: Watched) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    total: Tensor | float = 0.0
    for number in range(STEPS):
        loss = loss_of(net)
        update(optimizer, loss)
        total += loss  # running sum
        watched.step(number)
    assert watched.only.finding.subject == "total"
    assert_at(watched.only, "running sum")


def test_leaks_hidden_state_not_detached(watched: Watched) -> None:
    cell, head = nn.RNNCell(16, 8), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    hidden = torch.zeros(4, 8)
    for number in range(STEPS):
        hidden = cell(torch.randn(4, 16), hidden)  # hidden state
        loss = head(hidden).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True, inputs=list(head.parameters()))
        optimizer.step()
        watched.step(number)
    assert watched.only.finding.subject == "hidden"
    assert_at(watched.only, "hidden state")


def test_leaks_attribute_of_a_module(watched: Watched) -> None:
    def keep(net: Net, hidden: Tensor) -> None:
        net.history.append(hidden)  # attribute of a module

    model = Net(keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        update(optimizer, loss_of(model))
        watched.step(number)
    assert watched.only.finding.subject == "model.history"
    assert_at(watched.only, "attribute of a module")


class Meter:
    def __init__(self) -> None:
        self.series: dict[str, list[Tensor]] = defaultdict(list)

    def update(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.series[name].append(value)  # dictionary of lists


def test_leaks_dictionary_of_lists_of_an_object(watched: Watched) -> None:
    net, meter = Net(), Meter()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(STEPS):
        loss = loss_of(net)
        update(optimizer, loss)
        meter.update(loss=loss, mean=loss.detach().mean())
        watched.step(number)
    assert watched.only.finding.subject == "meter.series['loss']"
    assert_at(watched.only, "dictionary of lists")


def test_leaks_detached_tensors_that_take_much(watched: Watched) -> None:
    def keep(net: Net, hidden: Tensor) -> None:
        net.kept[net.calls] = hidden.detach().repeat(512, 1)  # detached tensors

    net = Net(keep)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(90):
        update(optimizer, loss_of(net))
        watched.step(number)
    incident = watched.only
    assert incident.finding.subject == "net.kept"
    assert "graph" not in incident.finding.message
    assert_at(incident, "detached tensors")
    # Each is 8 * 512 rows of 64 values of 4 bytes; not said before a container holds 32 MiB.
    assert incident.finding.value == pytest.approx(8 * 512 * 64 * 4, rel=0.1)
    assert incident.finding.baseline is not None
    assert incident.finding.baseline["items"] * 8 * 512 * 64 * 4 >= 32 * MIB


def tree(depth: int) -> dict[str, Any]:
    """A part of a large program: dicts in dicts."""
    return {str(branch): tree(depth - 1) if depth else [branch] for branch in range(8)}


def test_what_a_look_remembers_is_no_growth_of_the_script(watched: Watched) -> None:
    def keep(net: Net, hidden: Tensor) -> None:
        net.kept[net.calls] = hidden.detach().repeat(512, 1)

    net, program = Net(keep), tree(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(90):
        update(optimizer, loss_of(net))
        watched.step(number)
    # A look at so many objects takes 20 MiB for as long as there may be another: 2.7 times was said.
    assert watched.only.finding.value == pytest.approx(8 * 512 * 64 * 4, rel=0.1)
    assert len(program) == 8


class Registry:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.items: list[Tensor] = []

    def add(self, item: Tensor) -> None:
        self.items.append(item)  # out of reach


def test_leaks_container_that_no_variable_leads_to_is_named_by_its_holder(watched: Watched) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    record = functools.partial(Registry().add)
    for number in range(STEPS):
        loss = loss_of(net)
        update(optimizer, loss)
        record(loss)
        watched.step(number)
    assert watched.only.finding.subject == "Registry.items"
    assert_at(watched.only, "out of reach")


# -- healthy


def healthy_plain(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    losses, rows = [], []
    for number in range(70):
        loss = loss_of(net)
        update(optimizer, loss)
        losses.append(loss.item())
        rows.append({"step": number, "loss": loss.item()})
        watched.step(number)


def healthy_detached_losses(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    losses = []
    for number in range(70):
        loss = loss_of(net)
        update(optimizer, loss)
        losses.append(loss.detach())
        watched.step(number)


def healthy_replay_buffer(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    buffer: deque[Tensor] = deque(maxlen=50)
    for number in range(90):
        buffer.append(torch.empty(64, 4096))
        update(optimizer, loss_of(net))
        watched.step(number)


def healthy_predictions_of_each_epoch(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    for epoch in range(2):
        predictions = []
        for number in range(40):
            predictions.append(net(torch.randn(64, 16)).detach())
            update(optimizer, loss_of(net))
            watched.step(40 * epoch + number)


def healthy_other_lengths(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    lengths = torch.randint(1, 200, (70,), generator=torch.Generator().manual_seed(0)).tolist()
    for number, length in enumerate(lengths):
        update(optimizer, net(torch.randn(length, 16)).square().mean())
        watched.step(number)


def healthy_average_of_weights(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    average = {name: value.clone() for name, value in net.state_dict().items()}
    for number in range(70):
        update(optimizer, loss_of(net))
        for name, value in net.state_dict().items():
            average[name].lerp_(value, 0.01)
        watched.step(number)


def healthy_truncated_recurrence(watched: Watched, net: Net, optimizer: torch.optim.Optimizer) -> None:
    cell, hidden = nn.RNNCell(16, 8), torch.zeros(4, 8)
    for number in range(70):
        hidden = cell(torch.randn(4, 16), hidden.detach())
        update(optimizer, hidden.square().mean() + loss_of(net))
        watched.step(number)


class Cached(Dataset[Tensor]):
    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def __getitem__(self, index: int) -> Tensor:
        if index not in self.cache:
            self.cache[index] = torch.randn(16, 16384)
        return self.cache[index][:8, :16]


def healthy_data_set_that_fills_its_cache(
    watched: Watched, net: Net, optimizer: torch.optim.Optimizer
) -> None:
    samples = Cached()
    for number in range(90):
        update(optimizer, net(samples[number]).square().mean())
        watched.step(number)


@pytest.mark.parametrize(
    "loop", [value for name, value in list(globals().items()) if name.startswith("healthy_")]
)
def test_leaks_healthy_loop_is_silent(
    watched: Watched, loop: Callable[[Watched, Net, torch.optim.Optimizer], None]
) -> None:
    net = Net()
    loop(watched, net, torch.optim.Adam(net.parameters()))
    assert watched.found == []


# -- what the watch itself leaves alone


def test_leaks_steady_loop_is_never_looked_at(watched: Watched) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(80):
        update(optimizer, loss_of(net))
        watched.step(number)
    assert watched.watch.looks == 0


def test_leaks_a_look_keeps_nothing_alive(watched: Watched) -> None:
    class Odd:
        """Raises for all that is asked of it."""

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __len__(self) -> int:
            raise AssertionError

        def __bool__(self) -> bool:
            raise AssertionError

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    odd, losses, gone = [Odd()], [], []
    for number in range(STEPS):
        loss = loss_of(net)
        update(optimizer, loss)
        losses.append(loss)
        odd.append(Odd())
        watched.step(number)
        gone.append(weakref.ref(loss))
    assert watched.only.finding.subject == "losses"
    losses.clear()
    del loss
    assert [reference() for reference in gone] == [None] * STEPS


def test_leaks_growth_of_the_device_is_followed_too(watched: Watched) -> None:
    live = [0.0]
    watch = LeakWatch(read_heap=None, pacer=EveryStep(), budget=AllTheTime())
    watch._read_cuda = lambda: live[0]
    for number in range(30):
        live[0] += MIB
        watch.follow(number, None)
    assert watch.looks > 0


@pytest.mark.gpu
def test_leaks_losses_on_a_device(watched: Watched) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched.watch = LeakWatch(read_heap=None, pacer=EveryStep(), budget=AllTheTime())
    outputs = []
    for number in range(STEPS):
        output = net(torch.randn(512, 16, device="cuda"))
        update(optimizer, output.square().mean())
        outputs.append(output)
        watched.step(number)
    assert watched.only.finding.subject == "outputs"


class OneSecondAStep:
    """A clock that goes on with the steps."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> int:
        return self.step * 10**9

    def follow(self, watch: LeakWatch, steps: int, *, used: int = 10, own: int = 5) -> list[MemoryIncident]:
        """Take a new sample of a machine of 100 bytes at every step."""
        found = []
        for _ in range(steps):
            self.step += 1
            sample = MemorySample(rss_bytes=own, system_used_bytes=used, system_total_bytes=100)
            watch.note(self.step, sample)
            found += watch.follow(self.step, sys._getframe(1))
        return found


def test_leaks_growth_that_is_not_in_the_heap_is_said_without_a_name() -> None:
    clock = OneSecondAStep()
    watch = LeakWatch(
        clock_ns=clock,
        pacer=EveryStep(),
        read_heap=lambda: 400.0 * MIB,
        read_process=lambda: (400.0 + clock.step) * MIB,
    )
    (incident,) = clock.follow(watch, 700)
    assert (incident.finding.kind, incident.finding.subject) == ("memory_leak", "process")
    assert incident.finding.value == pytest.approx(MIB)
    assert "not what malloc hands out" in incident.finding.message
    assert watch.looks == 0


def test_leaks_short_memory_is_told_with_the_stack() -> None:
    clock = OneSecondAStep()
    watch = LeakWatch(clock_ns=clock, pacer=EveryStep(), read_heap=lambda: 1.0, read_process=lambda: 1.0)
    (incident,) = clock.follow(watch, 20, used=95, own=90)
    assert (incident.finding.kind, incident.finding.subject) == ("high_resource_use", "memory")
    assert incident.stack[-1].function == "test_leaks_short_memory_is_told_with_the_stack"


def test_leaks_steps_that_restart_are_followed_anew(watched: Watched) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for number in [*range(25), *range(STEPS)]:
        loss = loss_of(net)
        update(optimizer, loss)
        losses.append(loss)
        watched.step(number)
    assert watched.only.finding.subject == "losses"


def look(step: int, before: Look | None = None) -> Look:
    """Look at the heap at once."""
    taken = OpenLook(step, before=before)
    assert taken.go_on(step, sys._getframe(1), TimeSlice(10**11))
    return taken.look


def test_look_counts_tensors_by_kind() -> None:
    before = look(0)
    kept = [torch.zeros(3, 7, 11) for _ in range(12)]
    now = look(10, before)
    kinds = {tuple(shape): count for (shape, _, _), count in more_tensors(before, now)}
    assert kinds[(3, 7, 11)] == len(kept)


def test_own_bytes_leave_mapped_files_out(tmp_path: Path) -> None:
    if own_bytes() is None:
        pytest.skip("no /proc")
    file = tmp_path / "mapped"
    file.write_bytes(bytes(64 * MIB))
    before = own_bytes()
    mapped = torch.from_file(str(file), shared=True, size=64 * MIB, dtype=torch.uint8)
    assert int(mapped.sum()) == 0
    after = own_bytes()
    assert before is not None and after is not None and after - before < 32 * MIB
