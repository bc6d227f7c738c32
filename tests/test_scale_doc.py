"""docs/scale.md: each line of its arithmetic gives what stands behind the equals sign."""

from __future__ import annotations

import ast
import operator
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "scale.md").read_text()
LINES = re.findall(r"`([^`\n=]*\d[^`\n=]*) = ([\d.,e]+)`", PAGE)
OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(node: ast.expr) -> float:
    """The value of numbers, `+`, `*` and `/`."""
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.BinOp)
    return float(OPERATORS[type(node.op)](value_of(node.left), value_of(node.right)))


@pytest.mark.parametrize(("left", "right"), LINES)
def test_line_of_arithmetic_is_right(left: str, right: str) -> None:
    expression = ast.parse(left.replace(",", ""), mode="eval").body
    assert value_of(expression) == pytest.approx(float(right.replace(",", "")), rel=0.01)


def test_page_shows_its_arithmetic() -> None:
    assert len(LINES) >= 40
