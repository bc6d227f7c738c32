"""docs/limits.md names the constants that the code has, with their values, and tests that there are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "limits.md").read_text()
ROWS = re.findall(r"^\| ([^|]*) \| ([^|]*) \| .*?`((?:probe|dashboard)\.[\w.]+)`", TEXT, re.MULTILINE)


def as_written(value: float, text: str) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10), ("s", 1)):
        if text.endswith(f" {unit}"):
            return f"{value / size:g} {unit}"
    return f"{value:,}{' characters' if text.endswith('characters') else ''}"


def test_limits_doc_has_rows() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize(("what", "most", "constant"), ROWS)
def test_limits_doc_says_what_the_constant_is(what: str, most: str, constant: str) -> None:
    module, _, name = constant.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    assert as_written(value, most) == most


def test_limits_doc_names_tests_that_there_are() -> None:
    names = set(re.findall(r"`(test_\w+)`", TEXT))
    assert names - {path.stem for path in (ROOT / "tests").rglob("test_*.py")} == set()
