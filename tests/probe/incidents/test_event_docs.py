"""docs/detectors.md has a row with severity and rule for every kind, and every option with its default."""

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import probe
from probe.detectors.advice import advice_for
from probe.detectors.base import DetectorThresholds
from probe.detectors.sampled_thresholds import SampledThresholds
from probe.wire import KINDS, SEVERITIES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "detectors.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.M)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_docs_have_a_row_for_every_kind_with_severity_and_rule(kind: str) -> None:
    rows = [cells.split("|") for name, cells in ROWS if name == kind]
    assert rows
    for severity, rule, *_ in rows:
        assert any(word in severity for word in (*SEVERITIES, "chosen"))
        assert rule.strip()
    assert advice_for(kind)


@pytest.mark.usefixtures("spool")
def test_docs_example_of_options_runs() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    scope: dict[str, Any] = {"probe": probe, "model": nn.Linear(2, 1), "optimizer": None}
    exec(compile(block, "docs/detectors.md", "exec"), scope)  # noqa: S102
    assert scope["run"].active
    scope["run"].close()


def test_docs_rows_are_kinds_of_the_wire() -> None:
    assert {name for name, _ in ROWS} == KINDS


@pytest.mark.parametrize("option", [*fields(DetectorThresholds), *fields(SampledThresholds)])
def test_docs_name_every_option_with_its_default(option: Field[Any]) -> None:
    assert f"`{option.name}` ({option.default!r})" in PAGE
