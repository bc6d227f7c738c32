"""SECURITY.md: each promise names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = re.split(
    r"^\d+\. ", PAGE.partition("## What is promised")[2].partition("\n## ")[0], flags=re.MULTILINE
)[1:]


def test_security_page_says_what_is_promised_what_not_and_how_to_report() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    assert titles == ["What is promised", "What is not promised", "Which versions", "How to report"]
    assert len(PROMISES) >= 8


@pytest.mark.parametrize("promise", PROMISES, ids=lambda text: text.partition(".")[0].strip("* "))
def test_security_promise_names_tests_that_are_there(promise: str) -> None:
    names = re.findall(r"`(test_\w+\.py)`", promise)
    assert names
    for name in names:
        assert len(list((ROOT / "tests").rglob(name))) == 1, name
