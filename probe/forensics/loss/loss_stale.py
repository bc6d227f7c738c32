"""Which variables statements read as they were before, though they have been written since. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .loss_blocks import COMPOUND, heads
from .loss_names import assigned, fills, loaded, walk


def stale_names(
    statements: Iterable[ast.stmt], later: Iterable[ast.stmt], given: Iterable[str] = ()
) -> set[str]:
    """Return the variables whose present values are not those that the statements first ran with.

    Args:
        statements: to be run again, in their order.
        later: what has run since, besides these.
        given: variables that have their value of then.
    """
    statements = list(statements)
    changed = {name for one in [*statements, *later] for name in (*assigned(one), *_filled(one))}
    return _read_too_late(statements, set(given), changed)


def _filled(statement: ast.stmt) -> set[str]:
    """`parts` of `parts.append(loss)`."""
    methods = [call.func for call in walk(statement, ast.Call) if isinstance(call.func, ast.Attribute)]
    return {m.value.id for m in methods if isinstance(m.value, ast.Name) and fills(m.attr)}


def _read_too_late(statements: Iterable[ast.stmt], defined: set[str], changed: set[str]) -> set[str]:
    found: set[str] = set()
    for statement in statements:
        read = list(heads(statement)) if isinstance(statement, COMPOUND) else [statement]
        for one in read:
            found |= (loaded(one) - defined) & changed
        if isinstance(statement, COMPOUND):
            targets = [statement.target] if isinstance(statement, ast.For) else read
            defined |= {name for target in targets for name in assigned(target)}
            found |= _read_too_late([*statement.body, *getattr(statement, "orelse", [])], defined, changed)
        else:
            defined |= set(assigned(statement))
    return found
