"""Benchmarks are started by hand, from anywhere: each finds what it imports."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_scripts import ForkedScripts

TESTS = Path(__file__).parents[1]
PROGRAMS = sorted(
    path for path in (TESTS / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()
)
IMPORT = Path(__file__).with_name("scripts") / "import_script.py"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_benchmark_finds_what_it_imports(forked: ForkedScripts, tmp_path: Path, program: Path) -> None:
    code, _, said = forked.start([str(IMPORT), str(program)], tmp_path, {"PYTHONPATH": ""}).finish()
    assert code == 0, said[-2000:]
