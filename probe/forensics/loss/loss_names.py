"""Which names a piece of source reads, binds and deletes, and what a name stands for. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)
_FILLS: Final = frozenset("append extend insert add update setdefault appendleft".split())


def loaded(node: ast.AST) -> set[str]:
    """Names that are read from outside of `node`; of an assignment in place also the one that is assigned."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    names |= {n.target.id for n in walk(node, ast.AugAssign) if isinstance(n.target, ast.Name)}
    return names - own_names(node)


def assigned(node: ast.AST) -> list[str]:
    """Names that are bound, and those whose items or attributes are written."""
    own = own_names(node)
    found = [n.id for n in walk(node, ast.Name) if isinstance(n.ctx, ast.Store) and n.id not in own]
    places: list[ast.Attribute | ast.Subscript] = [*walk(node, ast.Attribute), *walk(node, ast.Subscript)]
    found += [name for n in places if isinstance(n.ctx, ast.Store) and (name := base_name(n))]
    return found + [n.name for n in walk(node, ast.FunctionDef)]


def own_names(node: ast.AST) -> set[str]:
    """Names that comprehensions and functions inside of `node` bind for themselves."""
    targets = [n.target for n in walk(node, ast.comprehension)]
    names = {n.id for target in targets for n in walk(target, ast.Name)}
    return names | {n.arg for n in walk(node, ast.arg)}


def walk(node: ast.AST, kind: type[_Node]) -> Iterator[_Node]:
    """All nodes of a kind in a piece of source."""
    return (n for n in ast.walk(node) if isinstance(n, kind))


def base_name(expression: ast.expr) -> str | None:
    """`a` of `a.b[0].c`."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def deleted(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that `del` takes away."""
    found = [node for statement in statements for node in walk(statement, ast.Delete)]
    return {target.id for node in found for target in node.targets if isinstance(target, ast.Name)}


def fills(method: str) -> bool:
    """Whether a method writes what the lines have made: `parts.append`, `out.mul_`.

    All others are left out, `self.opt.zero_grad()` above all: what they did to an object is done.
    """
    return method in _FILLS or (method.endswith("_") and not method.endswith("__"))


def plain_value(expression: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """The value of a name, or of a plain attribute of one; None of anything else."""
    if isinstance(expression, ast.Name):
        return namespace.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = plain_value(expression.value, namespace)
        attributes = getattr(owner, "__dict__", {})
        return attributes.get(expression.attr) if isinstance(attributes, Mapping) else None
    return None
