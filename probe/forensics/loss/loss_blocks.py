"""Where in the blocks of a function the model and backward were called. Pure."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...errors import ReplayError
from ...threads.stacks import Spot

COMPOUND: Final = (ast.If, ast.With, ast.For)
"""Statements that may be cut themselves."""


class LossSpots(NamedTuple):
    """Where in its file a step called the model and backward, and where it is now."""

    forward: Spot
    backward: Spot
    now: Spot

    def moved(self, by: int) -> LossSpots:
        """The same places, with lines counted from elsewhere."""
        return LossSpots(*(Spot(spot.line + by, spot.column) for spot in self))


def common_block(body: list[ast.stmt], spots: LossSpots) -> tuple[list[ast.stmt], int, int]:
    """The innermost list of statements with both calls in it, and which statements they are."""
    block = body
    while True:
        begin, end = (index(block, spot) for spot in (spots.forward, spots.backward))
        if begin is None or end is None or begin > end:
            raise ReplayError("the model was not called before backward in the same block")
        inner = [
            part
            for part in blocks(block[begin])
            if index(part, spots.forward) is not None and index(part, spots.backward) is not None
        ]
        if begin != end or not inner:
            return block, begin, end
        block = inner[0]


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The lists of statements in a compound one; none in others."""
    lists = [value for _, value in ast.iter_fields(statement) if isinstance(value, list)]
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    return [part for part in [*lists, *handlers] if part and isinstance(part[0], ast.stmt)]


def index(block: list[ast.stmt], spot: Spot) -> int | None:
    """Which statement a place is in."""
    return next((i for i, statement in enumerate(block) if holds(statement, spot)), None)


def holds(node: ast.stmt | ast.expr, spot: Spot) -> bool:
    """Whether a place is in a piece of source; where columns are not known, in one of its lines."""
    last = node.end_lineno or node.lineno
    if spot.column is None:
        return node.lineno <= spot.line <= last
    return start(node) <= (spot.line, spot.column) < (last, node.end_col_offset or sys.maxsize)


def start(node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Line and column of a piece of source."""
    return node.lineno, node.col_offset


def is_before(statement: ast.stmt, spot: Spot) -> bool:
    """Whether a statement begins before a place."""
    return start(statement) < (spot.line, sys.maxsize if spot.column is None else spot.column)


def path_to(statement: ast.stmt, spot: Spot) -> list[tuple[ast.stmt, list[ast.stmt], int]]:
    """The compound statements around a place, outermost first: each with the block of it and the position."""
    path: list[tuple[ast.stmt, list[ast.stmt], int]] = []
    while True:
        found = [(part, at) for part in blocks(statement) if (at := index(part, spot)) is not None]
        if not found:
            return path
        block, position = found[0]
        path.append((statement, block, position))
        statement = block[position]


def done_before(body: list[ast.stmt], block: list[ast.stmt], spot: Spot) -> list[ast.stmt]:
    """The statements before a place, of its own block and of all around it."""
    before: list[ast.stmt] = []
    while (position := index(body, spot)) is not None:
        before += body[:position]
        inner = [part for part in blocks(body[position]) if index(part, spot) is not None]
        if body is block or not inner:
            break
        body = inner[0]
    return before


def heads(statement: ast.If | ast.With | ast.For) -> Iterable[ast.AST]:
    """What a compound statement reads by itself."""
    if isinstance(statement, ast.With):
        return statement.items
    return [statement.test] if isinstance(statement, ast.If) else [statement.iter]
