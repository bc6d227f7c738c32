"""Walks through docs/migration.md: each section follows the guide of an older system, block by block.

A walk executes the code of one section from its first example to its last, in one process and one folder, and
holds what comes of each line against the checks in `walk_of_*_guide.py`.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import io
import itertools
import math
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from journals import read_journal
from progress_documents import progress_of_run
from torch import Tensor, nn

from dashboard.arguments import command_parser
from dashboard.cli import main
from probe import Probe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHOWN_ELSEWHERE = tuple(
    f"dashboard quickstart {scenario}" for scenario in ("comprehensive", "gradient", "memory", "training")
)
"""Commands that are only parsed here: test_quickstart.py runs the first, which is the others; 5 s each."""
_ITEM = re.compile(
    r"^\| (?P<example>.*?)\s*\| (?P<before>.+?) \| `(?P<here>.+)` \| (?P<differs>.*?) ?\|$"
    r"|^```python\n# (?P<title>.+)\n(?P<block>(?s:.*?))^```",
    re.MULTILINE,
)

Check: TypeAlias = str | tuple[str, str]
"""What has to hold afterwards: an expression, in which `it` is the value of the line; before it, in a pair,
statements that set the stage."""
Example: TypeAlias = tuple[str, list[Check]]
"""Heading in the older guide, and a check for each line and block that the page has for it."""


@dataclass(frozen=True)
class Item:
    """One line of a table, or one block below it."""

    example: str
    code: str


def prelude() -> str:
    """What the page's other code is executed after."""
    return TEXT.partition("```python\n")[2].partition("```")[0]


def sections() -> dict[str, str]:
    """Title -> text of the sections that have code."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2], strict=True) if _ITEM.search(text)}


def items(text: str) -> list[Item]:
    """Lines and blocks in the order of the page; a line without a heading belongs to the example above it."""
    found: list[Item] = []
    for match in _ITEM.finditer(text):
        example = match["title"] or match["example"] or found[-1].example
        found.append(Item(example, match["block"] or match["here"].replace("\\|", "|")))
    return found


def examples(text: str) -> list[tuple[str, list[Item]]]:
    """The items of each example together."""
    grouped = itertools.groupby(items(text), key=lambda item: item.example)
    return [(example, list(group)) for example, group in grouped]


class Walk:
    """One process and one folder in which a section is executed, with what checks are made of."""

    def __init__(self, spool: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._spool, self._caplog = spool, caplog
        self._repairs: list[Callable[[], object]] = []
        self.scope: dict[str, Any] = {"__name__": "page"}
        exec(compile(prelude(), str(PAGE), "exec"), self.scope)  # noqa: S102
        self.scope |= {"math": math, "approx": pytest.approx, "Path": Path}
        self.scope |= {"parameters": parameters, "read_journal": read_journal, "time": time.time}
        stage = (self.change, self.hold, self.keep, self.scale, self.spoil, self.watch_mode)
        found = (self.events, self.logged, self.measured, self.norm, self.options, self.progress_has)
        self.scope |= {tool.__name__: tool for tool in (*stage, *found)}
        self.scope["names"] = [name for name, _ in self.scope["model"].named_parameters()]

    def go(self, item: Item, check: Check) -> None:
        """Execute one item, and hold what comes of it against its check."""
        given, then = ("", check) if isinstance(check, str) else check
        exec(given, self.scope)  # noqa: S102
        self.scope["it"] = it = self._value(item.code)
        print(f"{item.example}: {item.code}\n-> {it!r}")  # shown where what has to hold does not, or raises
        assert eval(then, self.scope), then  # noqa: S307
        while self._repairs:
            self._repairs.pop()()

    def _value(self, code: str) -> Any:
        """Execute Python, or a `dashboard` command; return the last expression's value, or (code, output)."""
        if code in SHOWN_ELSEWHERE:
            return command_parser().parse_args(shlex.split(code)[1:])
        if code.startswith("dashboard "):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                return main(shlex.split(code)[1:]), out.getvalue()
        tree, last = ast.parse(code), None
        if isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        exec(compile(tree, str(PAGE), "exec"), self.scope)  # noqa: S102
        return None if last is None else eval(compile(last, str(PAGE), "eval"), self.scope)  # noqa: S307

    # -- for the stage

    def change(self, place: Any, key: Any, value: Any) -> None:
        """Put a value there until the item is checked."""
        before = place[key]
        place[key] = value
        self._repairs.append(lambda: place.__setitem__(key, before))

    def spoil(self, tensor: Tensor, value: float = math.nan, *, factor: float = 1.0) -> None:
        """Put a value into the first element, or multiply all of them, until the item is checked."""
        before, data = tensor.detach().clone(), tensor.detach()
        if factor == 1.0:
            data.view(-1)[0] = value
        data.mul_(factor)
        self._repairs.append(lambda: data.copy_(before))

    def keep(self, model: nn.Module) -> None:
        """Have its parameters be those of now again, once the item is checked."""
        before = copy.deepcopy(model.state_dict())
        self._repairs.append(lambda: model.load_state_dict(before))

    def hold(self, model: nn.Module, step: int, condition: Callable[[], object]) -> None:
        """Have the model's forward of a step (and later ones, of this item) wait for something."""
        calls = itertools.count()

        def wait(*_: object) -> None:
            if next(calls) >= step:
                wait_for(condition, "a forward waits in vain")

        self._repairs.append(model.register_forward_pre_hook(wait).remove)

    def scale(self, factor: float) -> None:
        """Multiply all gradients of the model."""
        for parameter in self.scope["model"].parameters():
            parameter.grad.mul_(factor)

    def watch_mode(self) -> list[bool]:
        """A list that says of each forward from now on whether autograd's anomaly mode is on."""
        seen: list[bool] = []
        self.scope["model"].register_forward_hook(lambda *_: seen.append(torch.is_anomaly_enabled()))
        return seen

    # -- for what has to hold

    def norm(self) -> float:
        """Norm of all gradients of the model, by torch."""
        grads = [parameter.grad.flatten() for parameter in self.scope["model"].parameters()]
        return torch.cat(grads).double().norm().item()

    def _folder(self, session: Probe | None) -> Path:
        session = session or self.scope["run"]
        assert isinstance(session, Probe)
        if session.active:
            session.flush()
        return self._spool / session.run

    def events(self, kind: str, session: Probe | None = None) -> list[Any]:
        """Events of a kind that a session has written so far, the oldest first."""
        return [event for event in read_journal(self._folder(session)).latest_events if event.kind == kind]

    def options(self, session: Probe) -> dict[str, str]:
        """What was given to `watch`, as it is kept with the run."""
        return read_journal(self._folder(session)).start.options

    def measured(self, session: Probe | None = None) -> set[str]:
        """Names of all that a session has measured so far."""
        found: set[str] = set()
        for frame in read_journal(self._folder(session)).frames:
            columns = (*frame.columns, *frame.parameter_columns, *frame.module_columns)
            found |= {*frame.scalars, *(column.name for column in columns)}
        return found

    def progress_has(self, **fields: object) -> bool:
        """Whether the run says so of its progress, which it does in its own time."""
        folder = self._folder(None)

        def is_said() -> bool:
            said = progress_of_run(folder)[-1:]
            return any(all(getattr(one, name) == value for name, value in fields.items()) for one in said)

        wait_for(is_said, f"the progress is not {fields}")
        return True

    def logged(self, logger: str = "") -> list[tuple[str, str]]:
        """(level, message) of what reached loggers whose names begin so."""
        found = [record for record in self._caplog.records if record.name.startswith(logger)]
        return [(record.levelname, record.getMessage()) for record in found]


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait for what happens on another thread or in another process."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def parameters(function: Callable[..., Any]) -> set[str]:
    """Names of what a function takes."""
    return set(inspect.signature(function).parameters)


@contextlib.contextmanager
def walking(spool: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Walk]:
    """A walk whose session is closed at the end."""
    walk = Walk(spool, caplog)
    try:
        yield walk
    finally:
        if "run" in walk.scope:
            walk.scope["run"].close()
