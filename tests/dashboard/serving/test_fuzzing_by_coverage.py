"""Inputs that reach what no input before has reached, for `FUZZ_SECONDS` (60) a target.

`FUZZ_CORPUS` names a folder that keeps them for the next time.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_targets import TARGETS

SCRIPT = Path(__file__).parents[1] / "coverage_fuzz.py"
SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))


@pytest.mark.faults
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed: make faults"
)
@pytest.mark.parametrize("name", [*TARGETS, "http"])
def test_fuzzing_by_coverage(tmp_path: Path, name: str) -> None:
    folder = Path(os.environ.get("FUZZ_CORPUS") or tmp_path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), name, str(folder), str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 500,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ends = re.findall(r"#(\d+)\s+DONE\s+cov: (\d+) ft: \d+ corp: (\d+)", done.stderr)
    assert ends, done.stderr[-4000:]
    runs, edges, kept = map(int, ends[-1])
    print(f"\n{name}: {runs:,} inputs in {SECONDS} s, {edges:,} edges, {kept:,} inputs kept")
    assert runs > 10
