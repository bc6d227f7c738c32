"""`dashboard diff --op` over bundles of real little trainings: the first op that differs, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_scripts import TORCH, ForkedScripts

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        hidden = torch.tanh(self.up(x))  # the op
        return x + self.down(hidden)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.head = nn.Linear(6, 8), Block(), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.head(self.drop(self.block(self.first(x))))

def build():
    return Net()
"""
SCRIPT = """
import argparse, importlib, torch, probe

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="model")
parser.add_argument("--lr-at", type=int, default=-1)
parser.add_argument("--data-at", type=int, default=-1)
parser.add_argument("--ulp-at", type=int, default=-1)
parser.add_argument("--bundle-at", type=int, default=6)
options = parser.parse_args()
torch.manual_seed(0)
net = importlib.import_module(options.model).build()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
run = probe.watch(net, optimizer)
data = torch.Generator().manual_seed(1)
for step in range(9):
    inputs, targets = torch.randn(8, 6, generator=data), torch.randint(3, (8,), generator=data)
    if step == options.lr_at:
        optimizer.param_groups[0]["lr"] = 0.2
    if step == options.data_at:
        inputs[0, 0] += 1e-3
    if step == options.ulp_at:
        inputs = torch.nextafter(inputs, torch.full_like(inputs, 9.0))
    if step == options.bundle_at:
        run.save_bundle()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(inputs), targets).backward()
    optimizer.step()
"""
Train = Callable[..., str]
Diff = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def torch_scripts() -> Iterator[ForkedScripts]:
    with ForkedScripts(*TORCH) as scripts:
        yield scripts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ops")
    (made / "train.py").write_text(SCRIPT)
    (made / "model.py").write_text(MODEL)
    (made / "other.py").write_text(MODEL.replace("torch.tanh(", "torch.sigmoid("))
    return made


@pytest.fixture(scope="module")
def train(folder: Path, torch_scripts: ForkedScripts) -> Train:
    """Train once with these arguments, and return the run's id."""
    trained: dict[object, str] = {}
    spool = folder / "spool"

    def run(*arguments: str, again: int = 0) -> str:
        if (arguments, again) not in trained:
            before = set(spool.glob("*/run.json"))
            environment = {"NANSCOPE_SPOOL": str(spool), "NANSCOPE_CONNECT": "", "NANSCOPE_QUIET": "1"}
            code, _, errors = torch_scripts.start(["train.py", *arguments], folder, environment).finish(120)
            assert code == 0, errors
            (new,) = set(spool.glob("*/run.json")) - before
            trained[arguments, again] = new.parent.name
        return trained[arguments, again]

    return run


@pytest.fixture(scope="module")
def diff(folder: Path, torch_scripts: ForkedScripts) -> Diff:
    """Run `dashboard diff --op` with these arguments; return its exit code and all it wrote."""

    def run(*arguments: str) -> tuple[int, str]:
        command = ["-m", "dashboard", "diff", "--op", *arguments]
        code, out, err = torch_scripts.start(
            command, folder, {"NANSCOPE_SPOOL": str(folder / "spool")}
        ).finish(240)
        assert "Traceback" not in err, err
        return code, out + err

    return run


def document(diff: Diff, *arguments: str, entries: tuple[str, ...] = ("model:build",)) -> dict[str, Any]:
    code, text = diff(*arguments, *(w for e in entries for w in ("--entry", e)), "--json")
    found: dict[str, Any] = json.loads(text)
    assert code == (0 if found["equal"] else 1)
    return found


def place(op: dict[str, Any]) -> tuple[str, str, str, str]:
    return op["op"], op["module"], Path(op["file"]).name, op["phase"]


def test_two_runs_of_one_seed_are_the_same_op_by_op(diff: Diff, train: Train) -> None:
    code, said = diff(train(), train(again=1), "--entry", "model:build")
    assert code == 0 and "Step 6 is the same in both, all" in said and "ops of it to the last bit" in said
    assert "It started from the same parameters, inputs and random state in both." in said


def test_changed_op_is_named_with_its_module_and_line(diff: Diff, train: Train) -> None:
    """At step 0 the runs have the same weights: the op itself is what differs."""
    one, other = train("--bundle-at", "0"), train("--bundle-at", "0", "--model", "other")
    code, said = diff(one, other, "--entry", "model:build", "--entry", "other:build")
    line = MODEL.splitlines().index("        hidden = torch.tanh(self.up(x))  # the op") + 1
    assert code == 1
    assert (
        f"At step 0 the first op whose output differs is `tanh` in `block`, model.py:{line}, forward." in said
    )
    assert f"The second run has `sigmoid` in its place (other.py:{line})." in said
    assert "times one rounding of these, beyond rounding." in said
    assert "What the step started from differs: gradient from the loss (output 0)" in said


@pytest.mark.faults
def test_changed_learning_rate_shows_as_other_parameters(diff: Diff, train: Train) -> None:
    found = document(diff, train(), train("--lr-at", "3"))
    first = found["first"]
    assert place(first["one"])[:2] == ("addmm", "first") and first["one"]["phase"] == "forward"
    assert set(first["reads"]) == {"parameter first.weight", "parameter first.bias"}
    assert found["equal_ops"] == 0 and found["beyond_rounding"] == first
    named = {each["name"] for each in found["started_from"]}
    assert {"parameter head.weight", "parameter block.up.weight"} <= named
    assert not any(name.startswith("argument") for name in named)


@pytest.mark.faults
def test_changed_data_shows_as_another_input(diff: Diff, train: Train) -> None:
    found = document(diff, train(), train("--data-at", "6"))
    assert found["first"]["reads"] == ["argument args[0]"]
    starts = {each["name"]: each for each in found["started_from"]}
    assert not any(name.startswith("parameter") for name in starts)
    assert starts["argument args[0]"]["largest"] == pytest.approx(1e-3, rel=1e-3)
    assert found["first"]["distance"]["roundings"] > 100


def test_rounding_alone_is_said_to_be_rounding(diff: Diff, train: Train) -> None:
    code, said = diff(train(), train("--ulp-at", "6"), "--entry", "model:build")
    assert code == 1 and "the first op whose output differs is `addmm` in `first`" in said
    assert "no more than sums in another order make" in said


def test_code_that_is_not_what_ran_is_refused(diff: Diff, train: Train) -> None:
    one, other = train("--bundle-at", "0"), train("--bundle-at", "0", "--model", "other")
    code, said = diff(one, other, "--entry", "model:build")
    assert code == 2 and "the step of the second run is not reproduced with --entry model:build" in said


def test_missing_bundles_and_other_steps_are_clear(diff: Diff, train: Train) -> None:
    one, without = train(), train("--bundle-at", "-1")
    code, said = diff(one, without, "--entry", "model:build")
    assert code == 2 and "has no bundle of rank 0" in said and "run.save_bundle()" in said
    code, said = diff(one, train("--bundle-at", "0"), "--entry", "model:build")
    assert code == 2 and "no bundles of the same step: the first has step 6, the second 0" in said
    code, said = diff(one, train(again=1), "--entry", "model:build", "--step", "4")
    assert code == 2 and "not two bundles of step 4" in said
    code, said = diff(one, train(again=1))
    assert code == 2 and "give --entry module:function" in said


@pytest.mark.faults
def test_bundles_themselves_can_be_named(folder: Path, diff: Diff, train: Train) -> None:
    bundles = [str(next((folder / "spool" / run / "bundles").iterdir())) for run in (train(), train(again=1))]
    assert document(diff, *bundles)["equal"]
