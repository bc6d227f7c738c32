"""The examples of docs/optimisation.md run, in order, and its figures are those of the code."""

import re
from pathlib import Path

import pytest

from probe.actions.optimisation.differences import EXACT, HALF
from probe.actions.optimisation.intervals import CONFIDENCE
from probe.actions.optimisation.modes import MODES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "optimisation.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_optimisation_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S):
        exec(compile(block, str(PAGE), "exec"), scope)  # noqa: S102
    said = capsys.readouterr().out
    assert "optimisations of Sequential on cpu, 12 pairs" in said
    assert "2 steps in mode memory_efficient" in said


def test_optimisation_page_has_every_mode_and_limit() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.M) == list(MODES)
    for limit in (*EXACT, *HALF):
        assert f"{limit:.4f}".rstrip("0") in TEXT
    assert f"{CONFIDENCE:.0%}".replace("%", " %") in TEXT
