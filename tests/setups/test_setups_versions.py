"""Other versions of Python and torch: this interpreter, and those that `SETUPS_INTERPRETERS` names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("other_versions.py")
OTHERS = [path for path in os.environ.get("SETUPS_INTERPRETERS", "").split(os.pathsep) if path]


@pytest.mark.slow
@pytest.mark.parametrize(
    "interpreter", [pytest.param(sys.executable, marks=[pytest.mark.faults] * (not OTHERS)), *OTHERS]
)
def test_other_versions_watch_find_a_nan_and_replay_it(interpreter: str) -> None:
    finished = subprocess.run([interpreter, str(SCRIPT)], capture_output=True, text=True, timeout=300)
    found = json.loads(finished.stdout.splitlines()[-1])
    assert finished.returncode == 0, found
    assert (found["healthy"], found["nan"]) == ("ok", "nonfinite_loss, forward, replayed")
    assert found["self_check"]["replay"].startswith("ok: tried")
