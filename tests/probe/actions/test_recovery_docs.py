"""The examples of docs/recovery.md run, in order, and every call and option of a recovery is in it."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

import probe
from probe.settings.recovery_options import NonfiniteAction

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "recovery.md").read_text(encoding="utf-8")
CALLS = {"Recovery", "InputPolicy", "OutputPolicy", "PolicyError", "robust_training_step", "safe_inference"}


def test_docs_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        exec(compile(block, "docs/recovery.md", "exec"), scope)  # noqa: S102
    assert "input has the shape (16, 4), not (any, 8)" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(CALLS))
def test_docs_name_every_call(name: str) -> None:
    assert name in probe.__all__ and f"probe.{name}" in PAGE


@pytest.mark.parametrize("kind", [probe.Recovery, probe.InputPolicy, probe.OutputPolicy])
def test_docs_name_every_option(kind: Any) -> None:
    names = {field.name for field in fields(kind)} - {"action"}
    assert {name for name in names if not re.search(rf"\b{name}\b", PAGE)} == set()


def test_docs_table_has_every_action() -> None:
    table = PAGE.split("| action | on |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == set(get_args(NonfiniteAction))
