"""Names of what a script holds, and the lines that feed it; reading them changes and keeps nothing."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from probe.memory.growth_lines import find_growth
from probe.memory.reachable import variables, walk

SOURCE = """
import torch
losses = []
total = 0

def other():
    losses.append("of another list")

def train(model):
    losses = []
    history = {}
    for step in range(3):
        loss = model(step)
        total = 0
        total += loss
        losses.append(loss)
        history.setdefault("loss", []).append(loss)
        history["step"] = step
    return losses

class Net:
    def __init__(self):
        self.cache = []
        self.hidden = None

    @torch.no_grad()
    def forward(self, x):
        out, self.hidden = self.rnn(x, self.hidden)
        self.cache = self.cache + [out]
        return out

    def plain(self, x):
        self.cache = [x]
        self.seen.add(x)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


def line_of(text: str, *, nth: int = 0) -> int:
    return [number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line][nth]


@pytest.mark.parametrize(
    ("name", "text", "function"),
    [
        ("losses", 'losses.append("of', "other"),
        ("history", "history.setdefault", "train"),
        ("cache", "self.cache = self.cache + [out]", "Net.forward"),
        ("seen", "self.seen.add(x)", "Net.plain"),
    ],
)
def test_growth_line_is_the_first_that_adds(script: str, name: str, text: str, function: str) -> None:
    found = find_growth(name, script)
    assert found is not None
    assert (found.line, found.function) == (line_of(text), function)
    assert text in found.text and text in found.as_frame().code


def test_growth_line_within_a_function_is_that_functions(script: str) -> None:
    found = find_growth("losses", script, within=line_of("def train"))
    assert found is not None and found.line == line_of("losses.append(loss)")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("out", 'self.history["out"].append(out)'),
        ("step", "self.history[name] += [step]"),
        ("grad", 'self.history.setdefault("grad", []).append(loss)'),
        (None, 'self.history["loss"].append(loss)'),
    ],
)
def test_growth_line_of_an_item_is_not_that_of_another_item(
    tmp_path: Path, key: str | None, text: str
) -> None:
    path = tmp_path / "trainer.py"
    lines = [
        'self.history["loss"].append(loss)',
        'self.history["out"].append(out)',
        'self.history.setdefault("grad", []).append(loss)',
        "self.history[name] += [step]",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = find_growth("history", str(path), key=key)
    assert found is not None and found.text == text


def test_growth_line_says_which_other_lines_of_the_function_it_may_be(tmp_path: Path) -> None:
    """Which of them runs, the source does not tell: the first one may be of a branch that is never taken."""
    path = tmp_path / "branches.py"
    adding = [f"        kept.append({index})" for index in range(5)]
    lines = ["def one():", "    kept.append(0)", "def train(kind):", "    if kind == 1:", adding[0]]
    lines += ["    if kind == 2:", *adding[1:]]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = find_growth("kept", str(path), within=3)
    assert found is not None and (found.line, found.others) == (5, (7, 8, 9, 10))
    assert found.at() == "branches.py:5 `kept.append(0)`, or line 7, 8, 9, ..."
    alone = find_growth("kept", str(path), within=1)
    assert alone is not None and alone.at() == "branches.py:2 `kept.append(0)`"


@pytest.mark.parametrize(("name", "text"), [("total", "total += loss"), ("hidden", "out, self.hidden =")])
def test_growth_line_of_a_carried_value_is_made_of_itself(script: str, name: str, text: str) -> None:
    found = find_growth(name, script, carried=True)
    assert found is not None and found.line == line_of(text)


@pytest.mark.parametrize("name", ["loss", "model", "nothing"])
def test_growth_line_of_what_does_not_grow_is_none(script: str, name: str) -> None:
    assert find_growth(name, script) is None


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", ""])
def test_growth_line_of_an_unreadable_file_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text, encoding="utf-8")
    assert find_growth("x", str(path)) is None
    assert find_growth("x", str(tmp_path / "missing.py")) is None


def test_walk_names_what_is_nested() -> None:
    target: list[int] = []

    class Slotted:
        __slots__ = ("inside",)

    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"head": nn.Linear(2, 1)}))
    holders: list[tuple[Any, str]] = [
        ({"a": target}, "holder['a']"),
        (OrderedDict(a=[1, target]), "holder['a'][1]"),
        (deque([target]), "holder[0]"),
        ((0, (target,)), "holder[1][0]"),
    ]
    for holder, expected in holders:
        assert _named_in(holder, target) == expected
    model[1]["head"].cache = target
    assert _named_in(model, target) == "holder.1.head.cache"
    slotted = Slotted()
    slotted.inside = target
    assert _named_in(slotted, target) is None


def _named_in(holder: Any, searched: Any) -> str | None:
    wanted = id(searched)
    del searched
    deadline_ns = time.thread_time_ns() + 10**9
    starts = [pair for pair in variables([sys._getframe()]) if pair[1].text() == "holder"]
    found = (access.text() for value, access in walk(starts, deadline_ns=deadline_ns) if id(value) == wanted)
    return next(found, None)


def test_walk_names_what_a_closure_has_kept() -> None:
    kept: list[int] = []

    def hook() -> None:
        kept.append(1)

    assert _named_in({"hook": hook}, kept) == "kept"


def test_walk_ends_in_cycles_and_at_its_deadline() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    starts = variables([sys._getframe()])
    assert sum(value is cycle for value, _ in walk(starts, deadline_ns=time.thread_time_ns() + 10**9)) == 1
    assert list(walk(starts, deadline_ns=0)) == []


def test_variables_keep_no_tensor_of_a_running_function_alive() -> None:
    def step() -> weakref.ref[torch.Tensor]:
        tensor = torch.zeros(4)
        reference = weakref.ref(tensor)
        assert "tensor" in [access.root.name for _, access in variables([sys._getframe()])]
        del tensor
        return reference if reference() is None else pytest.fail("the frame keeps it")

    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


def test_variables_leave_locals_that_the_script_keeps() -> None:
    value = 5
    mine = locals()
    variables([sys._getframe()])
    assert mine["value"] == value


def test_variables_of_a_module_are_left_as_they_are() -> None:
    code = "x = [1]\nframe = sys._getframe()\nfound = variables([frame])\n"
    space: dict[str, Any] = {"sys": sys, "variables": variables}
    exec(compile(code, "module.py", "exec"), space)  # noqa: S102 - module level, which a test function is not
    assert space["x"] == [1]
    assert "x" in [access.root.name for _, access in space["found"]]


def test_walk_runs_no_code_of_classes() -> None:
    class Hostile:
        def __init__(self) -> None:
            self.inside = [1, 2]

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __iter__(self) -> Any:
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

    class HostileDict(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError

    objects = {"object": Hostile(), "mapping": HostileDict(a=[3])}
    starts = [pair for pair in variables([sys._getframe()]) if pair[0] is objects]
    texts = [access.text() for _, access in walk(starts, deadline_ns=time.thread_time_ns() + 10**9)]
    assert "objects['object'].inside" in texts
    assert "objects['mapping']['a']" in texts


@pytest.mark.parametrize(
    "text", ['history["train"][key].append(value)', 'history["epoch"].setdefault(step, []).append(1)']
)
def test_growth_line_of_an_item_that_its_line_does_not_name_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trainer.py"
    path.write_text(text, encoding="utf-8")
    found = find_growth("history", str(path), key="loss")
    assert found is not None and found.text == text
