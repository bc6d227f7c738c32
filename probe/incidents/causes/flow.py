"""What the source of a function shows of its values: who makes, changes and reads them. Pure."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Final, NamedTuple

from .scene import Function, names_in, source

Loop = ast.For | ast.AsyncFor | ast.While
_IN_PLACE_FUNCTIONS: Final = frozenset({"relu_", "dropout_", "clamp_", "add_", "mul_"})
_NOT_VALUES: Final = frozenset({"requires_grad_", "zero_grad_", "share_memory_", "retain_grad_", "detach_"})


class Used(NamedTuple):
    """Variables of a loop's body."""

    carried: list[tuple[str, int]]
    """Read before they are assigned: from the iteration before; with the line that assigns them."""
    outside: list[str]
    """Read and never assigned in it."""


def function_source(code: CodeType) -> Function | None:
    """Return the source of a function."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def calls_in(function: Function | None) -> list[ast.Call]:
    """Return all calls of a function."""
    return [] if function is None else [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def loop_around(function: Function, line: int) -> Loop | None:
    """Return the innermost loop of a function that a line is in."""
    loops = [
        node
        for node in ast.walk(function)
        if isinstance(node, Loop) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(loops, key=lambda node: node.lineno, default=None)


def values_used(loop: Loop) -> Used:
    """Return which variables a loop carries over, and which it only reads."""
    first_read: dict[str, int] = {}
    assigned: dict[str, int] = {}
    carried: dict[str, None] = {}
    targets = set(_stored(loop.target)) if isinstance(loop, ast.For | ast.AsyncFor) else set()
    for statement in _in_order(loop.body):
        for value in _own_values(statement):
            for name in names_in(value):
                first_read.setdefault(name, statement.lineno)
                if name not in assigned and name not in targets:
                    carried[name] = None
        for name in _targets(statement):
            assigned.setdefault(name, statement.lineno)
            if isinstance(statement, ast.AugAssign) and name not in first_read:
                carried[name] = None
    return Used(
        carried=[(name, assigned[name]) for name in carried if name in assigned],
        outside=[name for name in first_read if name not in assigned and name not in targets],
    )


def backward_calls(function: Function) -> list[ast.Call]:
    """Return the calls of `backward` of a function, in the order of their lines."""
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def calls_before(function: Function, line: int, is_wanted: Callable[[ast.Call], bool]) -> int | None:
    """Return the line of the newest wanted call that leads to what a line reads; None without one."""
    waiting = [(name, line) for name in _read_at(function, line)]
    seen = set(waiting)
    while waiting:
        name, before = waiting.pop(0)
        made = [
            statement
            for statement in ast.walk(function)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
            and statement.lineno < before
            and name in _targets(statement)
        ]
        if not made:
            continue
        newest = max(made, key=lambda statement: statement.lineno)
        calls = [node for node in ast.walk(newest) if isinstance(node, ast.Call)]
        if any(is_wanted(call) for call in calls):
            return newest.lineno
        for value in _own_values(newest):
            for each in names_in(value):
                if (each, newest.lineno) not in seen:
                    seen.add((each, newest.lineno))
                    waiting.append((each, newest.lineno))
    return None


def in_place_statements(function: Function) -> Iterator[tuple[str, int, str]]:
    """Yield name, line and text of writes into a variable's tensor: `x += 1`, `x[0] = 0`, `x.relu_()`."""
    for statement in _in_order(function.body):
        if isinstance(statement, ast.AugAssign):
            for name in _owner(statement.target):
                yield name, statement.lineno, source(statement)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Subscript):
                    for name in _owner(target):
                        yield name, statement.lineno, source(statement)
        for value in _own_values(statement):
            for call in ast.walk(value):
                if isinstance(call, ast.Call) and (name := _written_by(call)):
                    yield name, call.lineno, source(call)


def _written_by(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        method = call.func.attr
        if method.endswith("_") and not method.endswith("__") and method not in _NOT_VALUES:
            owner = call.func.value
            if (
                method in _IN_PLACE_FUNCTIONS
                and call.args
                and isinstance(owner, ast.Name)
                and owner.id in ("torch", "F")
            ):
                owner = call.args[0]
            return next(iter(_owner(owner)), "")
    for keyword in call.keywords:
        if keyword.arg == "inplace" and getattr(keyword.value, "value", False) is True and call.args:
            return next(iter(_owner(call.args[0])), "")
    return ""


def _owner(node: ast.expr) -> list[str]:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return [node.id] if isinstance(node, ast.Name) else []


def _read_at(function: Function, line: int) -> list[str]:
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    statement = min(found, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)
    return [] if statement is None else [name for value in _own_values(statement) for name in names_in(value)]


def _in_order(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _in_order(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _in_order(handler.body)


def _own_values(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions that a statement itself reads, without its body's and its targets."""
    skipped = set(map(id, getattr(statement, "targets", []))) | {id(getattr(statement, "target", None))}
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr) and id(child) not in skipped:
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def _targets(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [name for target in targets if target is not None for name in _stored(target)]


def _stored(target: ast.AST) -> list[str]:
    return [
        node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
