"""A loss, a trainer or a helper in an installed package: judged by what it does, not by where it lies."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import nn

import probe
from probe.threads.user_lines import op_line, user_line
from probe.wire import Event, StackFrame
from probe.wire.libraries import first_own

pytestmark = pytest.mark.usefixtures("one_thread")

LOSSES = '''
import contextlib
import functools
import torch

calls = []
state = {"calls": 0}

def distance(a, b):
    return torch.sqrt((a - b).square().sum(-1))  # SQRT

def contrastive(model, x, y):
    """As many losses of packages: pure."""
    return distance(model(x), model(y)).mean()

class Counting:
    """Changes itself, a list and a module's dictionary; by a method, a property and an operator."""

    def __init__(self):
        self.calls, self.reads, self.adds = 0, 0, 0

    @property
    def factor(self):
        self.reads += 1
        return 1.0

    def __radd__(self, other):
        self.adds += 1
        return other + 0.0

    def __call__(self, model, x, y):
        self.calls += 1
        calls.append(len(calls))
        state["calls"] += 1
        return contrastive(model, x, y) * self.factor + self

counting = Counting()

@functools.lru_cache
def scale(number):
    state["calls"] += 1
    return 1.0

@contextlib.contextmanager
def counted():
    state["calls"] += 1
    yield

class Block:
    def __enter__(self):
        state["calls"] += 1

    def __exit__(self, *_):
        state["calls"] += 1

def in_blocks(model, x, y):
    with counted(), Block():
        return contrastive(model, x, y) * scale(1)

def writing(model, x, y):
    loss = contrastive(model, x, y)
    with open(PLACE, "a") as file:
        file.write("a line\\n")
    return loss

class Trainer:
    """Both calls are in the package: nothing of a step is the script's."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, x, y):
        loss = contrastive(self.model, x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
'''


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package's module; it is installed as far as its path tells."""
    place = tmp_path_factory.mktemp("env") / "site-packages"
    (place / "ourlib").mkdir(parents=True)
    (place / "ourlib" / "losses.py").write_text(f"PLACE = {str(place / 'log')!r}\n{LOSSES}")
    sys.path.insert(0, str(place))
    try:
        import ourlib.losses  # type: ignore[import-not-found]

        yield ourlib.losses
    finally:
        sys.path.remove(str(place))
        for name in [name for name in sys.modules if name.partition(".")[0] == "ourlib"]:
            del sys.modules[name]


def line_of(module: ModuleType, mark: str) -> int:
    lines = Path(str(module.__file__)).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def train(loss: Any, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """One step; no assertion, which pytest would rewrite: the source has to be what runs."""
    optimizer.zero_grad()
    loss(model, *batch).backward()
    optimizer.step()


def event_of(loss: Any, spool: Path) -> Event:
    """The event of four steps, of which the third has two equal items: the slope of a root at 0."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = loss(model, optimizer) if isinstance(loss, type) else None
    run = probe.watch(model, optimizer, spool=spool, connect="")
    for number in range(4):
        x, y = torch.randn(5, 4), torch.randn(5, 4)
        if number == 2:
            y[1] = x[1]
        if trainer is not None:
            trainer.step(x, y)
        else:
            train(loss, model, optimizer, (x, y))
    assert run._guard.failures == 0
    run.close()
    (journal,) = spool.iterdir()
    return next(e for e in read_journal(journal).events if e.kind == "nonfinite_gradient")


@pytest.mark.parametrize("name", ["contrastive", "counting", "in_blocks", "Trainer"])
def test_installed_loss_has_its_op_and_line_and_is_called_no_second_time(
    name: str, losses: Any, tmp_path: Path
) -> None:
    before = (losses.counting.calls, losses.state["calls"], len(losses.calls))
    event = event_of(getattr(losses, name), tmp_path)
    assert event.origin is not None, event.message
    assert event.origin.op == "SqrtBackward0"
    assert f"losses.py:{line_of(losses, 'SQRT')} (SqrtBackward0)" in event.message
    changed = (losses.counting.calls, losses.state["calls"], len(losses.calls))
    made = {"counting": (4, 4, 4), "in_blocks": (0, 13, 0)}.get(name, (0, 0, 0))
    assert tuple(now - then for now, then in zip(changed, before, strict=True)) == made
    if name == "counting":
        assert (losses.counting.reads, losses.counting.adds) == (4, 4)


def test_what_an_installed_function_writes_is_written_once_and_the_refusal_is_said(
    losses: Any, tmp_path: Path
) -> None:
    event = event_of(losses.writing, tmp_path)
    assert event.origin is None
    assert "they open a file" in event.message
    assert Path(losses.PLACE).read_text() == "a line\n" * 4


PYTHON = sysconfig.get_path("stdlib")
PLACES = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("files", "line", "op"),
    [
        # A command that pip has written, a program of its own package, and torch.
        (["ourlib/cli.py", "ourlib/train.py", "torch/optim/adam.py"], "ourlib/train.py", "ourlib/train.py"),
        # What stands in a script comes first; the line of an operation is where it ran.
        (["/home/me/train.py", "ourlib/losses.py"], "/home/me/train.py", "ourlib/losses.py"),
        (["/home/me/train.py", "transformers/trainer.py"], "/home/me/train.py", "/home/me/train.py"),
        ([f"{PYTHON}/runpy.py", "torchvision/models/vgg.py"], "torchvision/models/vgg.py", None),
    ],
)
def test_line_that_is_shown_is_the_programs_wherever_it_lies(
    files: list[str], line: str, op: str | None
) -> None:
    whole = [name if name.startswith("/") else f"{PLACES}/{name}" for name in files]
    frames = [StackFrame(file=file, line=1, function="f") for file in whole]
    shown, of_op = user_line(frames), op_line(frames)
    assert shown is not None and of_op is not None
    assert shown.file.endswith(line)
    assert of_op.file.endswith(op or line)
    for is_of_op, right in ((False, line), (True, op)):
        found = first_own(reversed(frames), is_of_op=is_of_op)
        assert (found.file.removeprefix(f"{PLACES}/") if found else None) == (op and right)
