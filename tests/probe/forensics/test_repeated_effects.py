"""What the lines of a loss do besides the loss happens once: a replay puts it back, or is declined.

A new kind of effect is one function of `EFFECTS`; each runs in one of the ways in which a loss is made
again, and by `make faults` in all of them.
"""

from __future__ import annotations

import collections
import io
import itertools
import logging
import os
import queue
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from journals import read_journal
from thinned import thinned
from torch import Tensor, nn

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, BAD = 6, 3
REASON = "the lines of the loss could not be run again ("


class Slots:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0


class Simulator:
    """Its state lies three levels deep."""

    def __init__(self) -> None:
        self.inner: Any = [{"position": [0]}]

    def step(self) -> int:
        self.inner[0]["position"][0] += 1
        return int(self.inner[0]["position"][0])

    @property
    def looked_at(self) -> int:
        return self.step()


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.heard = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.heard += 1


class Bank(nn.Module):
    """Like a metric: a module whose containers are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {"a": {"seen": [0]}, "late": collections.deque(maxlen=3)}

    def forward(self) -> float:
        self.kept["a"]["seen"].append(1)
        self.kept["late"].append(len(self.kept["a"]["seen"]))
        return 1.0


class World:
    """Everything that a step may change."""

    def __init__(self, folder: Path) -> None:
        self.simulator, self.slots, self.bank = Simulator(), Slots(), Bank()
        self.count, self.late = itertools.count(), collections.deque([1, 2, 3], maxlen=50)
        self.nested: Any = {"a": {"n": [0], "by": collections.Counter[str]()}}
        self.text, self.raw, self.array = io.StringIO(), bytearray(b"x"), np.zeros(3)
        self.random, self.generator = random.Random(3), np.random.default_rng(5)
        self.queue: queue.Queue[int] = queue.Queue()
        self.path = folder / "log.txt"
        self.path.write_text("")
        self.file = self.path.open("a")
        self.listener, self.logger = Listener(), logging.getLogger(f"world{id(self)}")
        self.logger.addHandler(self.listener)
        self.metrics, self.shared = [[0]], {"seen": 0}
        self.calls = 0

    def state(self) -> Any:
        self.file.close()
        self.logger.removeHandler(self.listener)
        return {
            "simulator": self.simulator.inner,
            "slots": self.slots.seen,
            "count": repr(self.count),
            "late": list(self.late),
            "nested": self.nested,
            "text": self.text.getvalue(),
            "raw": bytes(self.raw),
            "array": self.array.tolist(),
            "random": self.random.random(),
            "generator": float(self.generator.random()),
            "queue": self.queue.qsize(),
            "file": self.path.read_text(),
            "heard": self.listener.heard,
            "metrics": self.metrics,
            "calls": (self.calls, Simulator.__dict__.get("made", 0), dict(self.shared)),
            "bank": {key: list(map(str, part)) for key, part in self.bank.kept.items()},
        }


def simulator(world: World) -> None:
    world.simulator.step()


def property_that_steps(world: World) -> None:
    assert_never = world.simulator.looked_at < 0
    world.calls += int(assert_never)


def iterator_of_c(world: World) -> None:
    next(world.count)


def iterator_by_zip(world: World) -> None:
    list(zip(range(2), world.count, strict=False))


def double_ended_queue(world: World) -> None:
    world.late.append(4)


def dictionary_in_a_dictionary(world: World) -> None:
    world.nested["a"]["n"][0] += 1
    world.nested["a"]["n"] += [2]
    world.nested["a"]["by"].update("ab")


def by_another_name(world: World) -> None:
    append = world.nested["a"]["n"].append
    list(map(append, [1, 2]))


def file_written(world: World) -> None:
    with world.path.open("a") as file:
        file.write("one\n")


def file_held_open(world: World) -> None:
    world.file.write("one\n")


def printed(world: World) -> None:
    print("stepped")
    print("stepped", file=sys.stderr)
    sys.stdout.write("written")


def printed_into_a_file(world: World) -> None:
    print("stepped", file=world.text)


def logged(world: World) -> None:
    world.logger.warning("stepped")


def logger_with_lists_in_a_list(world: World) -> None:
    world.metrics[0].append(1)


def text_buffer(world: World) -> None:
    world.text.write("x")


def bytes_in_place(world: World) -> None:
    world.raw.append(1)


def array_in_place(world: World) -> None:
    world.array[1] += 1
    world.array += 1
    world.array.sort()


def array_by_function(world: World) -> None:
    np.add(world.array, 1, out=world.array)


def random_of_its_own(world: World) -> None:
    world.random.random()
    world.generator.random()


def put_in_a_queue(world: World) -> None:
    world.queue.put(1)


def slots_of_an_object(world: World) -> None:
    world.slots.seen += 1


def attribute_of_a_class(world: World) -> None:
    Simulator.made = Simulator.__dict__.get("made", 0) + 1  # type: ignore[attr-defined]


def attribute_by_name(world: World) -> None:
    setattr(world, "calls", world.calls + 1)  # noqa: B010 - the function is meant
    object.__setattr__(world, "calls", world.calls + 1)
    vars(world)["calls"] += 1


def module_with_containers(world: World) -> None:
    world.bank()


EFFECTS = [
    simulator,
    property_that_steps,
    iterator_of_c,
    iterator_by_zip,
    double_ended_queue,
    dictionary_in_a_dictionary,
    by_another_name,
    file_written,
    file_held_open,
    printed,
    printed_into_a_file,
    logged,
    logger_with_lists_in_a_list,
    text_buffer,
    bytes_in_place,
    array_in_place,
    array_by_function,
    random_of_its_own,
    put_in_a_queue,
    slots_of_an_object,
    attribute_of_a_class,
    attribute_by_name,
    module_with_containers,
]
PUT_BACK = [
    simulator,
    property_that_steps,
    double_ended_queue,
    dictionary_in_a_dictionary,
    by_another_name,
    printed,
    logged,
    logger_with_lists_in_a_list,
    bytes_in_place,
    array_in_place,
    random_of_its_own,
    slots_of_an_object,
    attribute_of_a_class,
    attribute_by_name,
    module_with_containers,
]
Effect = Callable[[World], None]
Batch = tuple[Tensor, Tensor]


class Loop:
    """A small training with one of the effects in each step."""

    def __init__(self, world: World, effect: Effect) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(4, 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.world, self.effect = world, effect

    def act(self) -> float:
        self.effect(self.world)
        return 1.0

    def update(self, loss: Tensor) -> None:
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def training_step(it: Loop, batch: Batch) -> Tensor:
    out = it.net(batch[0])
    scale = it.act()
    return (out * scale / batch[1]).mean() * 0.0  # LINE


def returned(it: Loop, batch: Batch) -> None:
    loss = training_step(it, batch)
    it.update(loss)


def in_one_function(it: Loop, batch: Batch) -> None:
    out = it.net(batch[0])
    scale = it.act()
    loss = (out * scale / batch[1]).mean() * 0.0  # LINE
    it.update(loss)


class Kept:
    def forward(self, it: Loop, batch: Batch) -> None:
        self.out = it.net(batch[0])
        it.act()

    def make(self, batch: Batch) -> None:
        self.loss = (self.out / batch[1]).mean() * 0.0  # LINE


def kept_on_an_attribute(it: Loop, batch: Batch) -> None:
    kept = Kept()
    kept.forward(it, batch)
    kept.make(batch)
    it.opt.zero_grad()
    kept.loss.backward()
    it.opt.step()


def losses(it: Loop, batch: Batch) -> Iterator[Tensor]:
    out = it.net(batch[0])
    scale = it.act()
    loss = (out * scale / batch[1]).mean() * 0.0  # LINE
    yield loss


def by_a_generator(it: Loop, batch: Batch) -> None:
    for loss in losses(it, batch):
        it.update(loss)


def collected(it: Loop, batch: Batch) -> None:
    outputs = [it.net(part) for part in batch[0].chunk(4)]
    scale = it.act()
    loss = (torch.stack(outputs) * scale / batch[1]).mean() * 0.0  # LINE
    it.update(loss)


class Acting(nn.Module):
    """Does something in its forward, which is run again for every origin."""

    def __init__(self, it: Loop) -> None:
        super().__init__()
        self.inner, self.act = it.net, it.act

    def forward(self, inputs: Tensor) -> Tensor:
        self.act()
        result: Tensor = self.inner(inputs)
        return result


WAYS = [returned, in_one_function, kept_on_an_attribute, by_a_generator, collected]
Way = Callable[[Loop, Batch], None]


def run_of(
    way: Way, effect: Effect, folder: Path, spool: Path | None, *, in_forward: bool = False
) -> tuple[Any, Event | None]:
    folder.mkdir()
    Simulator.made = 0  # type: ignore[attr-defined]
    world = World(folder)
    it = Loop(world, effect)
    if in_forward:
        it.net = Acting(it)
    run = None if spool is None else probe.watch(it.net, it.opt, spool=spool, connect="")
    for number in range(STEPS):
        way(it, (torch.randn(8, 4), torch.tensor(0.0 if number == BAD else 1.0)))
    state = world.state()
    if run is None or spool is None:
        return state, None
    assert run._guard.failures == 0
    run.close()
    (journal,) = spool.iterdir()
    return state, next(e for e in read_journal(journal).events if e.kind.startswith("nonfinite"))


@pytest.mark.parametrize(
    ("way", "effect"), thinned(WAYS, EFFECTS, every=5), ids=lambda function: function.__name__
)
def test_effects_happen_as_often_as_without_a_probe(
    way: Way, effect: Effect, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain, _ = run_of(way, effect, tmp_path / "plain", None)
    said = capfd.readouterr()
    watched, event = run_of(way, effect, tmp_path / "watched", tmp_path / "spool")
    said_watched = capfd.readouterr()

    assert watched == plain
    assert said_watched.out == said.out
    assert said_watched.err.count("stepped") == said.err.count("stepped")
    assert event is not None
    assert event.stacks.forward or REASON in event.message, event.message
    if event.stacks.forward:
        line = Path(__file__).read_text().splitlines()[event.stacks.forward[-1].line - 1]
        assert line.endswith("# LINE"), event.message
    assert event.stacks.forward or effect not in PUT_BACK, event.message


def program_started(world: World) -> None:
    subprocess.run(["sh", "-c", f"echo one >> {world.path}"], check=True)


def folder_changed(world: World) -> None:
    os.makedirs(world.path.with_name("made"), exist_ok=True)
    world.calls += len(os.listdir(world.path.parent))
    os.rename(world.path.with_name("made"), world.path.with_name(f"made{world.calls}"))


def text_read(world: World) -> None:
    with open(world.path) as file:
        world.calls += len(file.read())


@pytest.mark.parametrize(
    "effect", [*EFFECTS, program_started, folder_changed, text_read], ids=lambda effect: effect.__name__
)
def test_effects_of_a_forward_happen_as_often_as_without_a_probe(
    effect: Effect, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def way(it: Loop, batch: Batch) -> None:
        it.update((it.net(batch[0]) / batch[1]).mean() * 0.0)  # LINE

    plain, _ = run_of(way, effect, tmp_path / "plain", None, in_forward=True)
    said = capfd.readouterr()
    watched, event = run_of(way, effect, tmp_path / "watched", tmp_path / "spool", in_forward=True)
    said_watched = capfd.readouterr()
    assert watched == plain
    assert (said_watched.out, said_watched.err.count("stepped")) == (said.out, said.err.count("stepped"))
    assert event is not None
    assert event.origin is not None or effect not in PUT_BACK, event.message
