"""Modules are in every profile of a process, also where the first one began while calls were followed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, torch
from torch import nn
import probe
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
found = []
with probe.watch(model, optimizer, connect="", spool=sys.argv[1], quiet=True) as run:
    for _ in range(2):  # the first begins before any step: roots are looked for
        with run.profiling() as profile:
            step()
        found.append({row.name for row in profile.report.modules} >= {"0", "1", "2"})
        step()
print(found)
"""


def test_second_profile_of_a_process_has_its_modules_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "[True, True]"
