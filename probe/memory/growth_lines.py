"""The line of a script at which a container grows, or a running sum is carried on, found in its source.

Used when a leak has been found. Reads and parses files, one function after the other; runs nothing. What a
name is called where it grows is all that it goes by: a container that has another name there is not found.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ..threads.notebook_cells import shown_file, shown_name
from ..threads.stacks import CONTEXT_LINES
from ..wire import StackFrame
from .source_parts import Part, split_source

_GROWING: Final = frozenset(
    {"append", "appendleft", "add", "extend", "extendleft", "insert", "update", "setdefault", "push"}
)
_MAX_LINES: Final = 20_000
_MOST_OTHERS: Final = 3
Result = TypeVar("Result")


class GrowthLine(NamedTuple):
    """A statement that adds to a container, or carries a value on from step to step."""

    file: str
    line: int
    function: str
    """Qualified by classes and outer functions; ``<module>`` outside of any."""
    first_line: int
    """Of that function; 0 outside of any."""
    text: str
    others: tuple[int, ...] = ()
    """Further lines of the function that add to what has the same name: it may be one of them."""

    def at(self) -> str:
        """Return ``train.py:41 `losses.append(loss)` ``, without the blank, and the other lines."""
        more = ", ".join(map(str, self.others[:_MOST_OTHERS]))
        more += ", ..." if len(self.others) > _MOST_OTHERS else ""
        return f"{shown_name(self.file)}:{self.line} `{self.text}`{f', or line {more}' if more else ''}"

    def as_frame(self) -> StackFrame:
        """Return it as the innermost frame of a stack."""
        lines = linecache.getlines(self.file)
        first = max(1, self.line - CONTEXT_LINES)
        code = "".join(lines[first - 1 : self.line + CONTEXT_LINES]).removesuffix("\n")
        return StackFrame(
            file=shown_file(self.file)[:4096],
            line=self.line,
            function=self.function,
            code=code[:65536],
            code_first_line=first,
        )


Search: TypeAlias = Generator[None, None, "GrowthLine | None"]
"""Yields after each piece of a file, so that the search can go on in another step."""


def find_growth(
    name: str, file: str, *, within: int | None = None, carried: bool = False, key: str | int | None = None
) -> GrowthLine | None:
    """Return the first statement of a file that makes what is called `name` grow, and the function's others.

    Args:
        name: last part of a variable or attribute: ``losses``, ``cache`` for ``model.cache['x']``.
        file: source file.
        within: line of the head of the function to look in; None: the whole file.
        carried: look for a value that is computed from its own last one, not for a container.
        key: of the item that grows, `out` of ``history['out']``; None where it is no item, or not known.
    """
    return at_once(search_growth(name, file, within=within, carried=carried, key=key))


def at_once(search: Generator[None, None, Result]) -> Result:
    """Run a search to its end and return what it found."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            result: Result = end.value
            return result


def search_growth(
    name: str, file: str, *, within: int | None = None, carried: bool = False, key: str | int | None = None
) -> Search:
    """Do what `find_growth` does, in pieces of some milliseconds."""
    lines = linecache.getlines(file)
    if not lines or len(lines) > _MAX_LINES:
        return None
    sign = re.compile(rf"\b{re.escape(name)}\b.*(?:=|{'|'.join(sorted(_GROWING))})")
    found: GrowthLine | None = None

    def is_wanted(part: Part) -> bool:
        is_there = _is_in(part, within) if found is None else part.first_line == found.first_line
        return is_there and part.holds(sign)

    for statement, function, first in _parsed(lines, is_wanted):
        if statement is None:
            yield
            continue
        wanted = within if found is None else found.first_line
        if wanted is not None and first != wanted:
            continue
        grows = _carries(statement, name) if carried else _grows(statement, name)
        if not grows or (key is not None and (said := _keys(statement)) and key not in said):
            continue
        if found is None:
            text = lines[statement.lineno - 1].strip()[:120]
            found = GrowthLine(file, statement.lineno, function or "<module>", first, text)
        else:
            found = found._replace(others=(*found.others, statement.lineno))
    return found


def _is_in(part: Part, within: int | None) -> bool:
    return within is None or part.first_line == within or part.start < within <= part.end


def _parsed(
    lines: Sequence[str], is_wanted: Callable[[Part], bool]
) -> Iterator[tuple[ast.stmt | None, str, int]]:
    """Yield the simple statements of the wanted parts with function and first line; None after each part."""
    for part in split_source(lines):
        if is_wanted(part) and (tree := part.parse()) is not None:
            yield from _statements(tree, part.function, part.first_line)
            yield None, "", 0


def _statements(node: ast.AST, function: str, first: int) -> Iterator[tuple[ast.stmt, str, int]]:
    """Yield every simple statement with its function's name and first line, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}" if function else child.name
            is_class = isinstance(child, ast.ClassDef)
            # A code object's first line is that of its first decorator.
            head = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield from _statements(child, inner, first if is_class else head)
            continue
        if isinstance(child, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield child, function, first
        yield from _statements(child, function, first)


def _grows(statement: ast.stmt, name: str) -> bool:
    """Whether it calls a method of `name` that adds to it, or assigns to an item of it, or adds to it."""
    if isinstance(statement, ast.Expr):
        call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            return False
        return call.func.attr in _GROWING and _last_name(call.func.value) == name
    if isinstance(statement, ast.AugAssign):
        return _last_name(statement.target) == name
    if isinstance(statement, ast.Assign):
        return any(_assigns_item(target, name) for target in statement.targets) or (
            any(_is_named(target, name) for target in statement.targets)
            and isinstance(statement.value, ast.BinOp | ast.List | ast.Tuple | ast.Dict)
            and _mentions(statement.value, name)
        )
    return False


def _keys(statement: ast.stmt) -> set[object]:
    """Keys of the very items that a statement changes, where they stand in it.

    `out` of ``kept['out'].append(x)``.
    Nothing of ``kept['train'][name].append(x)``: which item that is, the line does not tell.
    """
    changed: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        changed = statement.targets
    elif isinstance(statement, ast.AugAssign):
        changed = [statement.target]
    elif isinstance(statement, ast.Expr):
        call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            changed = [call.func.value]
    slices = [node.slice for node in changed if isinstance(node, ast.Subscript)]
    # `history.setdefault('out', []).append(out)`
    slices += [node.args[0] for node in changed if isinstance(node, ast.Call) and node.args]
    return {node.value for node in slices if isinstance(node, ast.Constant)}


def _carries(statement: ast.stmt, name: str) -> bool:
    """Whether it gives `name` a value that is made of its last one."""
    if isinstance(statement, ast.AugAssign):
        return _last_name(statement.target) == name
    if not isinstance(statement, ast.Assign):
        return False
    targets = [item for target in statement.targets for item in _unpacked(target)]
    return any(_is_named(target, name) for target in targets) and _mentions(statement.value, name)


def _unpacked(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [item for element in target.elts for item in _unpacked(element)]
    return [target]


def _assigns_item(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Subscript) and _last_name(target) == name


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and _last_name(node) == name


def _mentions(node: ast.expr, name: str) -> bool:
    inside = (item for item in ast.walk(node) if isinstance(item, ast.Name | ast.Attribute))
    return any(_is_named(item, name) for item in inside)


def _last_name(node: ast.expr) -> str | None:
    """``cache`` of ``self.cache``, of ``self.cache['x']`` and of ``self.cache.setdefault('x', [])``."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node.attr if isinstance(node, ast.Attribute) else None
