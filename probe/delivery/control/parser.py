"""Reads a watchpoint's condition, such as ``when grad_norm("layers.3.*") > 8 * median``. Pure.

Python's own parser makes a syntax tree; what is not in the short list of what is allowed is refused. Nothing
is ever compiled to Python code, looked up or called by name.
"""

from __future__ import annotations

import ast
import math
from typing import Final

from .grammar import (
    HISTORY,
    LOGGED,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_PATTERN,
    MODULE_FUNCTIONS,
    NAMES,
    PARAMETER_FUNCTIONS,
    Arithmetic,
    Comparison,
    Condition,
    History,
    Junction,
    Negation,
    Negative,
    Number,
    Quantity,
    Term,
    quantities,
    uses_history,
)

_OPERATORS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}
_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_SHOWN: Final = 60
_NUMBERS: Final = (
    f"numbers, + - * / %, {', '.join(NAMES)}, {', '.join(f'{name}(...)' for name in PARAMETER_FUNCTIONS)}, "
    f'{", ".join(f"{name}(...)" for name in MODULE_FUNCTIONS)}, {LOGGED}("name"), and right of a comparison '
    f"{', '.join(HISTORY)}"
)
_CONDITIONS: Final = "comparisons (> >= < <= == !=) of numbers, joined by and, or, not"


def parse(text: str) -> Condition:
    """Read a condition.

    Args:
        text: of at most `MAX_LENGTH` characters; a leading "when" is left out.

    Raises:
        ValueError: it is no condition; says where, and what is allowed there.
    """
    if not isinstance(text, str):
        raise ValueError(f"a watchpoint's condition is a text, got {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the condition has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    source = without_when(text)
    if not source:
        raise ValueError(f"the condition is empty; write {_CONDITIONS}")
    if not source.isprintable():
        raise ValueError(f"the condition cannot be read: {source[:_SHOWN]!r} has characters without a glyph")
    return _Reader(source).read()


def without_when(text: str) -> str:
    """Return a condition in one line, a leading "when" left out."""
    source = " ".join(text.split())
    first, _, rest = source.partition(" ")
    return rest if first.lower() == "when" else source


class _Reader:
    """Turns the syntax tree of one condition into ours."""

    def __init__(self, source: str) -> None:
        # Python counts the columns in bytes.
        self._source = source
        self._bytes = source.encode("utf-8", "replace")

    def read(self) -> Condition:
        """Return the condition."""
        try:
            tree = ast.parse(self._bytes.decode(), mode="eval")
        except SyntaxError as error:
            at = min(max((error.offset or 1) - 1, 0), len(self._source))
            raise ValueError(
                f"{self._source[at : at + _SHOWN]!r} at character {at + 1} cannot be read "
                f"({error.msg}); write {_CONDITIONS}"
            ) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"the condition cannot be read ({error}); write {_CONDITIONS}") from None
        return self._condition(tree.body, 1)

    def _condition(self, node: ast.expr, depth: int) -> Condition:
        self._check_depth(node, depth)
        if isinstance(node, ast.BoolOp):
            operands = tuple(self._condition(value, depth + 1) for value in node.values)
            return Junction(isinstance(node.op, ast.And), operands)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return Negation(self._condition(node.operand, depth + 1))
        if isinstance(node, ast.Compare):
            return self._comparison(node, depth)
        raise self._refusal(node, f"is not a condition: write {_CONDITIONS}")

    def _comparison(self, node: ast.Compare, depth: int) -> Comparison:
        if len(node.ops) > 1:
            raise self._refusal(node, "compares more than two numbers: join two comparisons by and")
        operator = _COMPARISONS.get(type(node.ops[0]))
        if operator is None:
            raise self._refusal(node, f"is not a comparison of numbers: write {_CONDITIONS}")
        left = self._term(node.left, depth + 1)
        if uses_history(left):
            raise self._refusal(
                node.left,
                f"uses {', '.join(HISTORY)} left of a comparison: they are of the left side's own history, "
                "so what is watched stands left and they stand right",
            )
        right = self._term(node.comparators[0], depth + 1)
        comparison = Comparison(operator, left, right, self._text(node))
        if uses_history(right) and not any(quantities(left)):
            raise self._refusal(node.left, "never changes, so it has no history to compare with")
        if len({(one.is_of_modules, one.pattern) for one in quantities(comparison) if one.is_of_many}) > 1:
            raise self._refusal(node, "has two patterns; a comparison takes one")
        return comparison

    def _term(self, node: ast.expr, depth: int) -> Term:
        self._check_depth(node, depth)
        if isinstance(node, ast.Constant):
            return self._number(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self._term(node.operand, depth + 1)
            return Negative(operand) if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp):
            operator = _OPERATORS.get(type(node.op))
            if operator is not None:
                return Arithmetic(
                    operator, self._term(node.left, depth + 1), self._term(node.right, depth + 1)
                )
        raise self._refusal(node, f"is not allowed here: write {_NUMBERS}")

    def _number(self, node: ast.Constant) -> Number:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refusal(node, f"is not a number: write {_NUMBERS}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._refusal(node, "is too large a number: at most 1.7e308 is allowed")
        return Number(number)

    def _name(self, node: ast.Name) -> Term:
        if node.id in HISTORY:
            return History(node.id)
        if node.id in NAMES or node.id in PARAMETER_FUNCTIONS:
            return Quantity(node.id)
        raise self._refusal(node, f"is not a name that conditions know: write {_NUMBERS}")

    def _call(self, node: ast.Call) -> Quantity:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        takes_none = name in PARAMETER_FUNCTIONS
        if not takes_none and name not in MODULE_FUNCTIONS and name != LOGGED:
            raise self._refusal(node, f"calls something that conditions do not know: write {_NUMBERS}")
        if node.keywords or len(node.args) > 1 or (not node.args and not takes_none):
            raise self._refusal(
                node, f'is called with one name or pattern in quotes, such as {name}("layers.3.*")'
            )
        if not node.args:
            return Quantity(name)
        argument = node.args[0]
        pattern = argument.value if isinstance(argument, ast.Constant) else None
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
            raise self._refusal(
                argument, f"is not a name or pattern in quotes of at most {MAX_PATTERN} characters"
            )
        return Quantity(name, pattern)

    def _check_depth(self, node: ast.expr, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._refusal(node, f"is more than {MAX_DEPTH} operations deep")

    def _text(self, node: ast.expr) -> str:
        return self._bytes[node.col_offset : node.end_col_offset].decode("utf-8", "replace")

    def _refusal(self, node: ast.expr, why: str) -> ValueError:
        at = len(self._bytes[: node.col_offset].decode("utf-8", "replace")) + 1
        text = self._text(node)
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        return ValueError(f"{shown!r} at character {at} {why}")
