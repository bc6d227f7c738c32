"""Each line of docs/migration.md is executed: what it says to call is there, and takes what it is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
TEXT = PAGE.read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (?P<before>.+?) \| `(?P<here>.+)` \| (?P<differs>.*?) \|$", re.MULTILINE)


def sections() -> dict[str, str]:
    """Title -> text of the sections that have a table."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2], strict=True) if _ROW.search(text)}


def prelude() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return str(block)


def lines(text: str) -> list[str]:
    return [row["here"].replace("\\|", "|") for row in _ROW.finditer(text)]


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(prelude(), str(PAGE), "exec"), names)  # noqa: S102
    yield names
    names["run"].close()


@pytest.mark.parametrize("title", sections())
def test_every_line_of_the_page_runs(title: str, scope: dict[str, Any]) -> None:
    for line in lines(sections()[title]):
        if not line.startswith("http("):
            exec(compile(line, f"{PAGE}: {line}", "exec"), scope)  # noqa: S102


def test_every_row_of_a_table_is_one_of_those_that_are_executed() -> None:
    tables = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| before")]
    assert len(tables) == sum(len(lines(text)) for text in sections().values()) > 70
