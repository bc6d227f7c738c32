"""A file in parts gives the same statements, at the same lines, as the whole file does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import probe
from probe.memory.growth_lines import _statements, find_growth
from probe.memory.source_parts import split_source

LONG = "".join(f"        self.value_{number} = {number}\n" for number in range(250))
SOURCE = f'''"""Text
over lines."""
import torch

@torch.no_grad()
def decorated(
    x,
):
    text = """
not a statement
"""
    return x

class Net:
    """Long."""

    def __init__(self):
{LONG}
        self.cache = []

    @property
    def kept(self):
        self.cache.append(1)  # kept

    async def later(self):
        def inner():
            self.cache.append(2)

if decorated:
    total = 0
else:
    total = 1
joined = "one \\
two"
total += 1
'''


def statements(source: str) -> list[tuple[int, str, int]]:
    """Of the whole file."""
    return [(node.lineno, function, first) for node, function, first in _statements(ast.parse(source), "", 0)]


def parted(source: str) -> list[tuple[int, str, int]]:
    """Part by part."""
    found = []
    for part in split_source(source.splitlines(keepends=True)):
        tree = part.parse()
        if tree is not None:
            found += [
                (node.lineno, function, first)
                for node, function, first in _statements(tree, part.function, part.first_line)
            ]
    return found


def test_parts_have_the_statements_of_the_file() -> None:
    assert parted(SOURCE) == statements(SOURCE)


@pytest.mark.parametrize(
    "file", sorted(Path(probe.__file__).parent.glob("memory/*.py")), ids=lambda f: f.name
)
def test_parts_of_real_files_have_their_statements(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert parted(source) == statements(source)


def test_long_class_is_split_into_its_functions() -> None:
    parts = [part for part in split_source(SOURCE.splitlines(keepends=True)) if part.function]
    assert max(part.end - part.start for part in parts) < 260
    assert "Net" in {part.function for part in parts}


def test_growth_line_in_a_long_class_has_its_function(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(SOURCE, encoding="utf-8")
    found = find_growth("cache", str(path))
    assert found is not None
    assert (found.function, found.text) == ("Net.kept", "self.cache.append(1)  # kept")
