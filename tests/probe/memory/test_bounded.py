"""Which containers a script bounds itself, by the text of the file that feeds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.memory.bounded import is_asked, is_bounded


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if text not in cache:", False),
        ("found = cache.get(text)", False),
        ("cache.popitem(last=False)", True),
        ("del cache[oldest]", True),
        ("if len(cache) > 1000:", True),
        ("while 1000 <= len(self.cache):", True),
        ("cache[step] = {}", False),
        ("for row in cache:", False),
        ("total = sum(row for row in cache.values())", False),
        ("print(len(cache))", False),
        ("old_cache.clear()", False),
        ("if text in cached:", False),
    ],
)
def test_bounded_goes_by_what_the_script_does_with_a_name(tmp_path: Path, line: str, expected: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n    pass\n")
    assert is_bounded("cache", str(file)) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if text not in cache:", True),
        ("if text in self.cache['ids']:", True),
        ("found = cache.get(text)", True),
        ("cache[step] = {}", False),
        ("for row in cache:", False),
        ("total = sum(row for row in cache.values())", False),
        ("if text in cached:", False),
    ],
)
def test_asked_goes_by_what_the_script_asks(tmp_path: Path, line: str, expected: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n    pass\n")
    assert is_asked("cache", str(file)) is expected
