"""The statements that a code object was compiled from, found in its file and compared with what runs.

Called by what cuts the lines of a loss out of its function; reads source, runs nothing.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Final

from ...errors import ReplayError

_KEPT: Final = 4
"""Files: the lines of one loss are looked for in many functions."""


def function_called(qualified_name: str, source: str, file: str) -> list[CodeType]:
    """Return the functions of that name in a source; `<module>` is the source itself.

    Raises:
        ReplayError: it is no Python.
    """
    try:
        compiled = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        raise ReplayError(f"{file} cannot be read") from None
    return [code for code in _codes(compiled) if code.co_qualname == qualified_name]


def source_of(code: CodeType) -> list[ast.stmt]:
    """Return the statements that a code object runs: the body of a function, or those of a module.

    Of a cell of a notebook they are the one statement that the code object was made of. Not to be changed.

    Raises:
        ReplayError: its file cannot be read, or has changed since.
    """
    try:
        tree, compiled = _parsed("".join(linecache.getlines(code.co_filename)), code.co_filename)
    except (SyntaxError, ValueError):
        raise ReplayError("the script's source cannot be read") from None
    if all(known.co_code != code.co_code for known in _codes(compiled) if _is_like(known, code)):
        return [_statement_of(tree, code)]
    if code.co_name == "<module>":
        return tree.body
    if code.co_name == "<genexpr>":
        return [_expression_of(tree, code)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node.body
    raise ReplayError("the function that called backward is not in its file")


@functools.lru_cache(_KEPT)
def _parsed(source: str, file: str) -> tuple[ast.Module, CodeType]:
    return ast.parse(source), compile(source, file, "exec", dont_inherit=True)


def _statement_of(tree: ast.Module, code: CodeType) -> ast.stmt:
    """The one statement that a code object was made of: IPython compiles each of a cell by itself."""
    for statement in tree.body if code.co_name == "<module>" else ():
        alone = compile(ast.Module([statement], []), code.co_filename, "exec", dont_inherit=True)
        # Equal statements differ in their lines alone.
        if (alone.co_code, alone.co_linetable) == (code.co_code, code.co_linetable):
            return statement
    raise ReplayError("the script's source is no longer what runs")


def _expression_of(tree: ast.Module, code: CodeType) -> ast.stmt:
    """What a generator expression yields, as a statement."""
    positions = {(line, column) for line, _, column, _ in code.co_positions()}
    for node in ast.walk(tree):
        if isinstance(node, ast.GeneratorExp) and (node.elt.lineno, node.elt.col_offset) in positions:
            yielded = ast.copy_location(ast.Yield(node.elt), node.elt)
            return ast.copy_location(ast.Expr(yielded), node.elt)
    raise ReplayError("the generator expression that made the loss is not in its file")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_like(one: CodeType, other: CodeType) -> bool:
    return (one.co_qualname, one.co_firstlineno) == (other.co_qualname, other.co_firstlineno)
