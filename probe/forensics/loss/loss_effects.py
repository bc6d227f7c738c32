"""What statements read and write besides their own variables, followed into the script's own functions.

By names alone: an attribute `loss` of one object is taken for that of another. Reads source and looks up
plain attributes, runs nothing.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from ...errors import ReplayError
from ...threads.whereabouts import is_library
from .code_source import source_of
from .loss_names import assigned, base_name, fills, plain_value, walk

_MOST_FUNCTIONS: Final = 64
_Variables = Mapping[str, Any]


class Effects:
    """Of one or several statements.

    Attributes:
        reads: names of variables and attributes.
        writes: likewise; also of what is filled, as a list is by `append`.
        objects: what the variables that are read hold.
        shared: variables of outer functions and of modules that inner functions assign.
        iterators: variables and attributes that hold one, which cannot be read a second time.
    """

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.objects: list[Any] = []
        self.shared: set[str] = set()
        self.iterators: set[str] = set()
        self._seen: set[CodeType] = set()

    @classmethod
    def of(cls, statement: ast.stmt, variables: _Variables) -> Effects:
        """Those of a statement of a function with these variables."""
        found = cls()
        found._add([statement], variables)
        found.writes |= set(assigned(statement))
        return found

    def _add(self, body: Sequence[ast.stmt], variables: _Variables) -> None:
        for node in (node for statement in body for node in ast.walk(statement)):
            if isinstance(node, ast.Name):
                self._add_name(node, variables)
            elif isinstance(node, ast.Attribute):
                (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add(node.attr)
                self._note_iterator(node, node.attr, variables)
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                self.writes |= _named(node.value)
            elif isinstance(node, ast.Global | ast.Nonlocal):
                self.shared |= set(node.names)
                self.writes |= set(node.names)
            elif isinstance(node, ast.Call):
                self._add_call(node, variables)

    def _add_name(self, node: ast.Name, variables: _Variables) -> None:
        if isinstance(node.ctx, ast.Load):
            self.reads.add(node.id)
            self.objects += [variables[node.id]] if node.id in variables else []
            self._note_iterator(node, node.id, variables)

    def _note_iterator(self, node: ast.expr, name: str, variables: _Variables) -> None:
        if name not in self.writes and isinstance(plain_value(node, variables), Iterator):
            self.iterators.add(name)

    def _add_call(self, call: ast.Call, variables: _Variables) -> None:
        if isinstance(call.func, ast.Attribute) and fills(call.func.attr):
            self.writes |= _named(call.func.value)
        function, given = _function_called(call, variables)
        if function is None or function.__code__ in self._seen or len(self._seen) >= _MOST_FUNCTIONS:
            return
        self._seen.add(function.__code__)
        try:
            body = source_of(function.__code__)
        except ReplayError:
            return
        passed = dict(_passed(function.__code__, given, call))
        values = {name: plain_value(value, variables) for name, value in passed.items()}
        if given:
            values[function.__code__.co_varnames[0]] = given[0]
        before, self.writes = self.writes, set()
        self._add(body, ChainMap(values, _closure(function), function.__globals__))
        # What is done to a parameter is done to what was given for it.
        self.writes |= {name for one in self.writes & passed.keys() for name in _named(passed[one])} | before


def _named(expression: ast.expr) -> set[str]:
    """`losses` of `self.losses["G"]`, and of `losses`."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return {expression.attr}
    name = base_name(expression)
    return set() if name is None else {name}


def _function_called(call: ast.Call, variables: _Variables) -> tuple[FunctionType | None, list[Any]]:
    """The function of the script's own that a call leads to, and the object whose method it is."""
    found: Any = plain_value(call.func, variables)
    given: list[Any] = []
    if found is None and isinstance(call.func, ast.Attribute):
        owner = plain_value(call.func.value, variables)
        found = _method_of(owner, call.func.attr)
        given = [owner]
    if isinstance(found, MethodType):
        found, given = found.__func__, [found.__self__]
    if not isinstance(found, FunctionType) or is_library(found.__code__.co_filename):
        return None, []
    return found, given if found.__code__.co_argcount else []


def _method_of(owner: Any, name: str) -> Any:
    """A method as its class has it; no property is asked."""
    classes = type(owner).__mro__ if owner is not None else ()
    found = next((vars(kind)[name] for kind in classes if name in vars(kind)), None)
    return found if isinstance(found, FunctionType) else None


def _passed(code: CodeType, given: Sequence[Any], call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    parameters = code.co_varnames[len(given) : code.co_argcount + code.co_kwonlyargcount]
    if not any(isinstance(argument, ast.Starred) for argument in call.args):
        yield from zip(parameters, call.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg in parameters)


def _closure(function: FunctionType) -> MutableMapping[str, Any]:
    return {name: cell.cell_contents for name, cell in cells_of(function)}


def cells_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of outer functions that a function uses, each with its cell; empty ones left out."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018 - raises where it is empty
        except ValueError:
            continue
        yield name, cell


def has_yield(statements: Iterable[ast.stmt]) -> bool:
    """Whether statements give values to who runs them, or wait."""
    kinds = (ast.Yield, ast.YieldFrom, ast.Await)
    return any(True for one in statements for kind in kinds for _ in walk(one, kind))


def refuse_iterators(effects: Iterable[Effects]) -> None:
    """Refuse statements that would read on from an iterator of the script's.

    Raises:
        ReplayError: they would: the training would miss what they read.
    """
    made: set[str] = set()
    for one in effects:
        if read := one.iterators - made:
            raise ReplayError(f"they read from an iterator, {min(read)}, which cannot be read again")
        made |= one.writes
