"""`dashboard diff` over real little trainings: what is equal, what is not, and where it begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_scripts import TORCH, ForkedScripts

SCRIPT = """
import argparse, torch, probe

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--faster-at", type=int, default=-1)
parser.add_argument("--other-batch-at", type=int, default=-1)
parser.add_argument("--scale-at", type=int, default=-1)
parser.add_argument("--freeze-at", type=int, default=-1)
options = parser.parse_args()
torch.manual_seed(options.seed)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
probe.watch(net, optimizer)
data = torch.Generator().manual_seed(1)
for step in range(options.steps):
    inputs, targets = torch.randn(8, 6, generator=data), torch.randint(3, (8,), generator=data)
    if step == options.faster_at:
        optimizer.param_groups[0]["lr"] = 0.2
    if step == options.other_batch_at:
        inputs, targets = inputs[:5], targets[:5]
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(inputs), targets).backward()
    if step == options.scale_at:
        net[0].weight.grad *= 1.01
    if step == options.freeze_at:
        net[2].weight.grad.zero_()
    optimizer.step()
"""
Train = Callable[..., str]


@pytest.fixture(scope="module")
def torch_scripts() -> Iterator[ForkedScripts]:
    with ForkedScripts(*TORCH) as scripts:
        yield scripts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trainings")
    (made / "train.py").write_text(SCRIPT)
    return made


@pytest.fixture(scope="module")
def train(folder: Path, torch_scripts: ForkedScripts) -> Train:
    """Train, and return the run's id; the same arguments are trained once unless `again`."""
    trained: dict[tuple[object, ...], str] = {}
    spool = folder / "spool"

    def run(*arguments: str, again: bool = False) -> str:
        if again or arguments not in trained:
            before = set(spool.glob("*/run.json"))
            environment = {"NANSCOPE_SPOOL": str(spool), "NANSCOPE_CONNECT": "", "NANSCOPE_QUIET": "1"}
            code, _, errors = torch_scripts.start(["train.py", *arguments], folder, environment).finish(120)
            assert code == 0, errors
            (new,) = set(spool.glob("*/run.json")) - before
            trained[arguments] = new.parent.name
        return trained[arguments]

    return run


def diff(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dashboard", "diff", *arguments],
        env={**os.environ, "NANSCOPE_SPOOL": str(folder / "spool")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def document(folder: Path, *arguments: str) -> dict[str, object]:
    code, text = diff(folder, *arguments, "--json")
    found: dict[str, object] = json.loads(text)
    assert code == (0 if found["equal"] else 1)
    return found


def test_same_seed_is_equal_to_the_last_bit(folder: Path, train: Train) -> None:
    first, second = train(), train(again=True)
    code, said = diff(folder, first, second, "--tolerance", "0")
    assert code == 0 and "They are equal in all 30 steps that both have." in said
    assert "gradients of 2 layers" in said


def test_another_seed_parts_at_step_0(folder: Path, train: Train) -> None:
    first, second = train(), train("--seed", "1")
    code, said = diff(folder, first, second)
    assert code == 1 and "They differ from step 0, the first one." in said
    assert "seed" in said and "First layer in backward order: `2`" in said


@pytest.mark.parametrize(
    ("arguments", "step", "layers", "settings"),
    [
        (("--faster-at", "12"), 13, ["2", "0"], [("lr", 12)]),
        (("--other-batch-at", "9"), 9, ["2", "0"], [("samples", 9)]),
        (("--scale-at", "7"), 7, ["0"], []),
        (("--freeze-at", "20"), 20, ["2"], []),
    ],
)
def test_change_in_mid_run_names_its_step_and_layers(
    folder: Path,
    train: Train,
    arguments: tuple[str, ...],
    step: int,
    layers: list[str],
    settings: list[object],
) -> None:
    """The rate of step 12 makes other weights for step 13; a gradient that was changed differs at once."""
    found = document(folder, train(), train(*arguments))
    parting = found["parting"]
    assert (parting["step"], parting["equal"]) == (step, step)
    assert [each["name"] for each in parting["layers"]] == layers
    assert [(each["name"], each["step"]) for each in parting["settings"]] == settings
    changed = [fact["name"] for fact in found["facts"]["differing"] if fact["group"] == "Configuration"]
    assert changed == [arguments[0].lstrip("-").replace("-", "_")]


def test_longer_run_is_equal_as_far_as_both_go(folder: Path, train: Train) -> None:
    code, said = diff(folder, train(), train("--steps", "40"))
    assert code == 0 and "In the second run only, and not compared: 10 steps from 30 to 39." in said


def test_wrong_use_ends_with_2_and_one_sentence(folder: Path, train: Train) -> None:
    run = train()
    for arguments in ((run, run), (run, "nothing-like-it"), (run, run, "--tolerance", "x")):
        code, said = diff(folder, *arguments)
        assert code == 2 and said.strip()
