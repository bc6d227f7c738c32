"""Where a script cuts the graph between its model and its loss, read from the source of the training loop.

Asked once, on the training thread, when no gradient has ever reached a model that is called and updated.
Nothing is run: values are followed from the model's call to `backward()` through plain assignments. What
cannot be followed is not guessed at: then there is no line.
"""

from __future__ import annotations

import ast
import itertools
import linecache
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Final, NamedTuple, TypeAlias

from ..threads.notebook_cells import shown_name
from ..threads.stacks import RawFrame
from ..threads.whereabouts import is_installed

_CUTTING_METHODS: Final = frozenset(
    {
        *(
            "detach",
            "detach_",
            "item",
            "tolist",
            "numpy",
            "argmax",
            "argmin",
            "argsort",
            "long",
            "int",
            "bool",
        ),
        *("eq", "ne", "lt", "le", "gt", "ge", "isclose", "bernoulli", "multinomial"),
    }
)
_CUTTING_FUNCTIONS: Final = frozenset(
    {
        *("float", "int", "tensor", "as_tensor", "from_numpy", "array", "asarray"),
        *("argmax", "argmin", "argsort", "bernoulli", "multinomial"),
    }
)
_NUMBERS: Final = frozenset({"shape", "dtype", "device", "ndim", "size", "dim", "numel", "requires_grad"})
"""Attributes that carry no graph, and cut none."""
_NO_GRAD: Final = frozenset({"no_grad", "inference_mode"})
_SWITCH: Final = "set_grad_enabled"
_MOST_TEXT: Final = 60

_Span: TypeAlias = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column."""


class Cut(NamedTuple):
    """What takes values out of the graph."""

    line: int
    text: str


_Flow: TypeAlias = Cut | bool
"""Of a value: whether it carries the model's graph, or where it was cut off from it."""


def find_cut(stack: Sequence[RawFrame]) -> str | None:
    """Return where the graph is cut, ``train.py:21: out.detach()``; None where the source does not show it.

    Args:
        stack: at the model's call, outermost frame first.
    """
    for code, offset in reversed(stack):
        if is_installed(code.co_filename):
            return None
        function = _function_of(code)
        if function is None:
            return None
        walk = _Walk(_span_of(code, offset), function)
        cut = walk.cut_in(function.body) or walk.returned
        if isinstance(cut, Cut):
            return f"{shown_name(code.co_filename)}:{cut.line}: {cut.text}"
        if not cut:
            return None
    return None


def find_cut_after(
    function: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, is_model: Callable[[ast.Call], bool]
) -> Cut | None:
    """Return where the graph is cut between a call of a model and `backward`; None where nothing shows it.

    Args:
        function: the source of the training loop.
        is_model: whether a call is one of a model.
    """
    cut = _Walk(None, function, is_model).cut_in(function.body)
    return cut if isinstance(cut, Cut) else None


def find_switched_off(stack: Sequence[RawFrame]) -> str | None:
    """Return where gradients are disabled round a call, ``train.py:8: with torch.no_grad()``; None if unseen.

    Args:
        stack: at the call, outermost frame first.
    """
    for code, offset in reversed(stack):
        function = None if is_installed(code.co_filename) else _function_of(code)
        if function is None:
            continue
        walk = _Walk(_span_of(code, offset), function)
        walk.cut_in(function.body)
        if walk.called_in is not None:
            return f"{shown_name(code.co_filename)}:{walk.called_in.line}: {walk.called_in.text}"
    return None


def _function_of(code: CodeType) -> ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function, or the module, that a code object was made of."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    if code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _switches_off(call: ast.expr) -> bool:
    """Whether it is `torch.no_grad`, called or not, or another that disables gradients."""
    function = call.func if isinstance(call, ast.Call) else call
    if _name_of(function) == _SWITCH:
        return _is_set_to(call, False)
    return _name_of(function) in _NO_GRAD


def _is_set_to(call: ast.expr, mode: bool) -> bool:
    """Whether it is `torch.set_grad_enabled(mode)`."""
    if not isinstance(call, ast.Call) or _name_of(call.func) != _SWITCH or len(call.args) != 1:
        return False
    return isinstance(call.args[0], ast.Constant) and call.args[0].value is mode


def _span_of(code: CodeType, offset: int) -> _Span:
    """Where in the source the call stands that an instruction makes."""
    return next(itertools.islice(code.co_positions(), offset // 2, None), (None, None, None, None))


class _Walk:
    """Follows names through one function."""

    def __init__(
        self,
        span: _Span | None,
        function: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef,
        is_model: Callable[[ast.Call], bool] | None = None,
    ) -> None:
        self.returned: _Flow = False
        """What the function returns."""
        self.called_in: Cut | None = None
        """What disables gradients where the call at `span` is made."""
        self._span = span
        self._is_model = is_model
        self._flows: dict[str, _Flow] = {}
        self._block: Cut | None = None
        """The `with torch.no_grad()` that is under way, or the decorator."""
        for decorator in () if isinstance(function, ast.Module) else function.decorator_list:
            if _switches_off(decorator):
                self._block = Cut(decorator.lineno, f"@{ast.unparse(decorator)}"[:_MOST_TEXT])

    def cut_in(self, body: Sequence[ast.stmt]) -> Cut | None:
        """Return what cuts off the value that `backward` is called on."""
        for statement in body:
            found = self._statement(statement)
            if found is not None:
                return found
        return None

    def _statement(self, statement: ast.stmt) -> Cut | None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None
        if isinstance(statement, ast.Expr) and _switches_off(statement.value):
            self._block = Cut(statement.lineno, ast.unparse(statement)[:_MOST_TEXT])
        elif isinstance(statement, ast.Expr) and _is_set_to(statement.value, True):
            self._block = None
        for value in _values_of(statement):
            flow = self._flow(value)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                self._assign(statement, flow)
            if isinstance(statement, ast.Return):
                self.returned = _together([flow, self.returned])
            if isinstance(cut := self._flow_of_backward(value), Cut):
                return cut
        outer = self._block
        if isinstance(statement, ast.With):
            heads = [item.context_expr for item in statement.items if _switches_off(item.context_expr)]
            if heads:
                self._block = outer or Cut(statement.lineno, f"with {ast.unparse(heads[0])}"[:_MOST_TEXT])
        ends, before = [], dict(self._flows)
        for inner in _bodies_of(statement):
            if isinstance(statement, ast.If):
                self._flows = dict(before)
            if (found := self.cut_in(inner)) is not None:
                return found
            ends.append(self._flows)
        if isinstance(statement, ast.If):
            # Nobody knows here which way was taken.
            names = {name for end in ends for name in end}
            self._flows = {name: _together([end.get(name, False) for end in ends]) for name in names}
        self._block = outer
        return None

    def _assign(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign, flow: _Flow) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    known = self._flows.get(name.id, False) if isinstance(statement, ast.AugAssign) else False
                    self._flows[name.id] = _together([known, flow])

    def _flow_of_backward(self, value: ast.expr) -> _Flow:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and _name_of(node.func) == "backward":
                receivers = [node.func.value] if isinstance(node.func, ast.Attribute) else []
                return _together([self._flow(each) for each in (*receivers, *node.args)])
        return False

    def _flow(self, value: ast.expr) -> _Flow:
        """Whether a value carries the model's graph, or what has cut it off."""
        if isinstance(value, ast.Name):
            return self._flows.get(value.id, False)
        if isinstance(value, ast.Lambda | ast.Constant):
            return False
        children = [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]
        if isinstance(value, ast.Call):
            where = value.lineno, value.end_lineno, value.col_offset, value.end_col_offset
            if where == self._span if self._is_model is None else self._is_model(value):
                self.called_in = self._block
                return self._block or True
            children += [keyword.value for keyword in value.keywords]
        flow = _together([self._flow(child) for child in children])
        if flow is True and (self._block or self._cuts(value)):
            return self._block or Cut(value.lineno, ast.unparse(value)[:_MOST_TEXT])
        is_number = isinstance(value, ast.Attribute) and value.attr in _NUMBERS
        return False if is_number else flow

    @staticmethod
    def _cuts(value: ast.expr) -> bool:
        if isinstance(value, ast.Attribute):
            return value.attr == "data"
        if isinstance(value, ast.Compare):
            return True
        if not isinstance(value, ast.Call):
            return False
        is_method = isinstance(value.func, ast.Attribute)
        name = _name_of(value.func)
        return (is_method and name in _CUTTING_METHODS) or name in _CUTTING_FUNCTIONS


def _together(flows: Sequence[_Flow]) -> _Flow:
    """Of a value that is made of others: one that carries the graph is enough."""
    cuts = [flow for flow in flows if isinstance(flow, Cut)]
    return True if True in flows else (cuts[0] if cuts else False)


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _values_of(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, not of those inside it."""
    return (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr))


def _bodies_of(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if isinstance(inner := getattr(statement, name, None), list):
            yield inner
