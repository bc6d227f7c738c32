"""Whereabouts: a real program is stopped at every one of its lines, and its place is known."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from probe.threads.stacks import line_of, raw_stack
from probe.threads.whereabouts import (
    Line,
    at_line,
    describe,
    innermost,
    is_compiling,
    is_with_a_person,
    place_of,
)

PROGRAM = """
def step(batch):
    look("training")
    helper(batch)


def helper(batch):
    look("in a function of the step")


def evaluate():
    for batch in range(2):
        look("evaluating")


def gather_numbers():
    look("gathering")


def train(epochs):
    for epoch in range(epochs):
        look("before the first batch")
        for batch in range(2):
            step(batch)
            look("after the step")
            gather_numbers()
            if batch == 1:
                evaluate()
                save_model()
        look("between epochs")
        gather_numbers()
    look("after the last epoch")


def save_model():
    look("saving")


def flat():
    batch = 0
    while batch < 2:
        [step(batch)]
        batch += 1
    else:
        look("after a while")
    for step_of_mine in [step]:
        look("in another loop")


def nested_function():
    for batch in range(1):
        def inner():
            step(batch)
        inner()
    look("after the loop round a function")


def no_loop():
    step(0)
    look("after the only step")


def service():
    train(1)
    look("train has returned")
    gather_numbers()
"""


class Looker:
    """Takes the stack wherever the program asks for it."""

    def __init__(self, path: Path) -> None:
        self.seen: dict[str, list[Line]] = {}
        path.write_text(PROGRAM)
        self.scope: dict[str, Any] = {"look": self.look}
        exec(compile(PROGRAM, str(path), "exec"), self.scope)  # noqa: S102 - a constant

    def look(self, name: str) -> None:
        frame: FrameType = sys._getframe(1)
        # Only the program's own part of the stack: what calls it is this test.
        raw = [item for item in raw_stack(frame, limit=256) if item[0].co_filename.endswith("program.py")]
        outer = [Line("/usr/lib/python3/launcher.py", 1, "launch")]
        lines = [Line(code.co_filename, line_of(code, offset), code.co_name) for code, offset in raw]
        self.seen[name] = [*outer, *lines]

    def run(self, function: str, *arguments: Any) -> dict[str, list[Line]]:
        self.seen.clear()
        self.scope[function](*arguments)
        return dict(self.seen)


@pytest.fixture
def program(tmp_path: Path) -> Looker:
    return Looker(tmp_path / "program.py")


def places(seen: dict[str, list[Line]]) -> dict[str, str]:
    return {name: place_of(stack, seen["training"]) for name, stack in seen.items()}


def test_place_in_nested_loops_follows_the_loop_that_trains(program: Looker) -> None:
    assert places(program.run("train", 2)) == {
        "before the first batch": "other_work",
        "training": "step",
        "in a function of the step": "step",
        "after the step": "step",
        "gathering": "other_work",
        "evaluating": "other_work",
        "saving": "other_work",
        "between epochs": "other_work",
        "after the last epoch": "away",
    }


def test_place_after_a_while_loop_and_in_another_loop_is_away(program: Looker) -> None:
    assert places(program.run("flat")) == {
        "training": "step",
        "in a function of the step": "step",
        "after a while": "away",
        "in another loop": "away",
    }


def test_place_of_a_loop_round_a_function_that_is_called_in_it(program: Looker) -> None:
    assert places(program.run("nested_function"))["after the loop round a function"] == "away"


def test_place_without_any_loop_is_never_certain(program: Looker) -> None:
    assert set(places(program.run("no_loop")).values()) == {"other_work"}


def test_place_after_the_training_function_has_returned_is_away(program: Looker) -> None:
    found = places(program.run("service"))
    assert (found["between epochs"], found["train has returned"], found["gathering"]) == (
        "other_work",
        "away",
        "away",
    )


@pytest.mark.parametrize(
    ("file", "function", "place"),
    [
        ("/home/me/augment.py", "rotate", "step"),
        ("/home/me/metrics.py", "evaluate_bleu", "other_work"),
        ("torch/utils/data/dataloader.py", "_next_data", "step"),
        ("torch/utils/data/dataloader.py", "_shutdown_workers", "other_work"),
        ("torch/utils/checkpoint.py", "checkpoint", "step"),
        ("torch/serialization.py", "_write", "other_work"),
        ("torch/distributed/distributed_c10d.py", "all_reduce", "step"),
        ("torch/distributed/distributed_c10d.py", "barrier", "other_work"),
    ],
)
def test_place_in_a_call_of_the_batch_loop(program: Looker, file: str, function: str, place: str) -> None:
    import torch

    path = file if file.startswith("/") else str(Path(torch.__file__).parents[1] / file)
    seen = program.run("train", 2)
    assert place_of([*seen["after the step"], Line(path, 3, function)], seen["training"]) == place


def test_place_outside_of_the_script_loops_for_ever_and_says_nothing(program: Looker, tmp_path: Path) -> None:
    """A notebook: the kernel's own loop is no training loop."""
    import asyncio.base_events as kernel

    assert kernel.__file__ is not None
    seen = program.run("service")
    loop = Line(kernel.__file__, line_in(Path(kernel.__file__), "self._run_once()"), "run_forever")
    assert place_of([loop], [loop, *seen["training"][1:]]) == "away"


def line_in(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_place_with_a_debugger_is_away(program: Looker) -> None:
    import pdb

    seen = program.run("train", 2)
    stack = [*seen["after the step"], Line(pdb.__file__, 1, "interaction")]
    assert place_of(stack, seen["training"]) == "away"


def test_a_script_that_is_called_like_a_debugger_is_no_person() -> None:
    assert not is_with_a_person([Line("/home/me/code.py", 1, "main")])


def test_a_script_under_an_editors_debugger_is_no_person() -> None:
    import pdb

    assert not is_with_a_person([Line(pdb.__file__, 1, "run"), Line("/home/me/train.py", 1, "main")])


def test_a_script_that_asks_is_with_a_person(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text("x = 1\nanswer = input('go on?')\nloss = model.input(x)\n")
    assert is_with_a_person([Line(str(script), 2, "<module>")])
    assert not is_with_a_person([Line(str(script), 3, "<module>")])


def test_compiling_is_known_by_torchs_own_files() -> None:
    import torch

    dynamo = Path(torch.__file__).with_name("_dynamo")
    convert, evaluate = dynamo / "convert_frame.py", dynamo / "eval_frame.py"
    assert (convert.exists(), evaluate.exists()) == (True, True)
    assert is_compiling([Line("/home/me/train.py", 3, "main"), Line(str(convert), 1, "_compile")])
    assert not is_compiling([Line("/home/me/train.py", 3, "main"), Line(str(evaluate), 1, "_fn")])


@pytest.mark.parametrize(
    ("file", "function", "words"),
    [
        (
            "utils/data/dataloader.py",
            "__next__",
            "waiting for the next batch of the DataLoader at train.py",
        ),
        (
            "distributed/distributed_c10d.py",
            "all_reduce",
            "other ranks in a collective (all_reduce) at train",
        ),
        ("autograd/graph.py", "_engine_run_backward", "in backward at train.py:88"),
        ("optim/adam.py", "step", "in the optimizer's update at train.py:88"),
    ],
)
def test_description_names_what_the_script_is_at(file: str, function: str, words: str) -> None:
    import torch

    library = Line(str(Path(torch.__file__).parent / file), 1, function)
    threads = Line(__import__("threading").__file__, 1, "wait")
    assert words in describe([Line("/home/me/train.py", 88, "main"), library, threads])


def test_description_of_a_closure_names_its_own_line() -> None:
    import torch

    optimizer = Line(str(Path(torch.__file__).parent / "optim/lbfgs.py"), 1, "step")
    stack = [Line("/home/me/train.py", 88, "main"), optimizer, Line("/home/me/train.py", 90, "closure")]
    assert describe(stack) == "at train.py:90"


def test_innermost_line_of_nothing_is_none() -> None:
    assert innermost([]) is None
    assert at_line([]) == ""
