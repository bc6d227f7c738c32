"""A run in a real kernel: the cell shows a card, and the card follows the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    not (find_spec("nbclient") and find_spec("ipykernel")),
    reason="nbclient or ipykernel is not installed; both are in the dev extra",
)
SCRIPT = Path(__file__).with_name("scripts") / "execute_notebook.py"
BEGIN = """
import time, torch, probe
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
run = probe.watch(net, optimizer, quiet=True)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()
    run.flush()
"""
FOLLOW = """
deadline = time.monotonic() + 60
train(20)
while time.monotonic() < deadline and not any("step 19" in text for text in seen()):
    time.sleep(0.1)
"""
SEEN = """
from probe.actions.notebook import live_display
def seen():
    return [display._shown for display in live_display._displays.values()]
"""
END = """
run.close()
import threading
deadline = time.monotonic() + 60
while time.monotonic() < deadline and any(t.name == "nanscope-notebook" for t in threading.enumerate()):
    time.sleep(0.1)
"""


def execute(folder: Path, *cells: str) -> list[dict[str, Any]]:
    """Execute cells, and return them with their outputs."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        input=json.dumps(cells),
        env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_PLATFORM_DIRS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["cells"]
    return found


def cards(cell: dict[str, Any]) -> list[str]:
    shown = [each.get("data", {}) for each in cell["outputs"]]
    return ["".join(data["text/html"]) for data in shown if "text/html" in data]


def problems(cells: list[dict[str, Any]]) -> list[Any]:
    outputs = [each for cell in cells for each in cell["outputs"]]
    return [each for each in outputs if each["output_type"] in ("stream", "error")]


def test_last_line_of_a_cell_is_a_card_that_follows_the_training(tmp_path: Path) -> None:
    cells = execute(tmp_path, BEGIN, "run", SEEN, FOLLOW, END)
    assert not problems(cells)
    (shown,) = cards(cells[1])
    assert "<svg" in shown and "No warnings in 20 steps" in shown and "finished" in shown


def test_show_draws_a_card_in_the_middle_of_a_cell_and_of_a_finished_run(tmp_path: Path) -> None:
    cells = execute(
        tmp_path, BEGIN, "probe.show(run)\ntrain(5)\nrun.close()", "probe.show(run.run)", "probe.show('no')"
    )
    assert len(cards(cells[1])) == 1
    (again,) = cards(cells[2])
    assert "No warnings in 5 steps" in again and "finished" in again
    assert [each["ename"] for each in problems(cells)] == ["ValueError"]
