"""Torch comes from another environment's folder: by a .pth file, or by PYTHONPATH as on a cluster."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from run_numbers import run_of

SCRIPT = """
import sys
import torch
from torch import nn
import probe

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with probe.watch(model, optimizer, spool=sys.argv[1], connect="", quiet=True):
    for step in range(6):
        inputs = torch.zeros(2, 4) if step == 4 else torch.ones(2, 4)
        loss = model(inputs).square().sum() / inputs.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
ROOT = Path(__file__).parents[2]


def python_of(tmp_path: Path, way: str) -> tuple[Path, dict[str, str]]:
    """An interpreter whose own folder of packages is empty, and its environment."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
    ours = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if way == "pth":
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "behind.pth").write_text(f"{ours}\n")
    else:
        # `pip install --target`: a folder of any name.
        target = tmp_path / "packages"
        target.symlink_to(ours)
        environment["PYTHONPATH"] += f"{os.pathsep}{target}"
    return folder / "bin" / "python", environment


@pytest.mark.parametrize("way", ["pth", "pythonpath"])
def test_origin_is_found_where_torch_lies_elsewhere(tmp_path: Path, way: str) -> None:
    python, environment = python_of(tmp_path, way)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    spool = tmp_path / "spool"
    subprocess.run([python, script, spool], check=True, timeout=100, env=environment)
    event = next(event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss")
    assert event.message.startswith("Inf first at step 4"), event.message
    assert event.origin is not None and "div" in event.origin.op
    assert ", train.py:12 (div)" in event.message
