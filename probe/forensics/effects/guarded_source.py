"""Source in which every call, and every write to something, asks the guard first.

Lines and columns stay as they are, and so do the names of functions: stacks of a replay are those of the
script. Rewrites a copy of a syntax tree, runs nothing.
"""

from __future__ import annotations

import ast
import copy
from types import CodeType
from typing import Any, Final

from .effect_guard import GUARD

_MARK: Final = "__nanscope_guard__"
"""Stands for the guard until the source is compiled: no variable of the script's is needed for it."""

_NO_OLD_ITERATORS: Final = (
    *(ast.Constant, ast.Starred, ast.BinOp, ast.Compare, ast.JoinedStr, ast.UnaryOp, ast.Lambda),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""What is no iterator, or one that is made on the spot."""


def compile_guarded(tree: ast.Module, file: str) -> CodeType:
    """Compile a module, not to be changed, so that it asks the guard.

    Raises:
        SyntaxError, ValueError: it does not compile.
    """
    guarded = ast.fix_missing_locations(_Guarding().visit(copy.deepcopy(tree)))
    return _with_guard(compile(guarded, file, "exec", dont_inherit=True))


def _with_guard(code: CodeType) -> CodeType:
    constants = (
        GUARD
        if type(constant) is str and constant == _MARK
        else _with_guard(constant)
        if isinstance(constant, CodeType)
        else constant
        for constant in code.co_consts
    )
    return GUARD.known(code.replace(co_consts=tuple(constants)))


def _asked(what: str, value: ast.expr, *more: Any) -> ast.expr:
    """`GUARD.what(value, *more)`, at the place of the value."""
    asked = ast.Attribute(ast.Constant(_MARK), what, ast.Load())
    call = ast.Call(asked, [value, *(ast.Constant(one) for one in more)], [])
    return ast.fix_missing_locations(ast.copy_location(call, value))


class _Guarding(ast.NodeTransformer):
    """Puts the guard's questions in; annotations are left alone."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.args = [self._argument(one) for one in node.args]
        for keyword in node.keywords:
            keyword.value = self._argument(keyword.value)
        names = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
        if isinstance(node.func, ast.Attribute):
            node.func.value = _asked("method", node.func.value, node.func.attr, names)
        else:
            node.func = _asked("function", node.func, names)
        return node

    def _argument(self, node: ast.expr) -> ast.expr:
        return node if isinstance(node, _NO_OLD_ITERATORS) else _asked("argument", node)

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = self._argument(node.value)
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        node.value = _asked("argument", node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        pairs = zip(node.ops, node.comparators, strict=True)
        node.comparators = [
            _asked("argument", value) if isinstance(op, ast.In | ast.NotIn) else value for op, value in pairs
        ]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = _asked("store", node.value, node.attr)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = _asked("items", node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
            node.value = self._argument(node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self.visit(node.target)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        node.value = self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            return [ast.copy_location(ast.Expr(_asked("filled", read)), node), node]
        if isinstance(target, ast.Attribute):
            target.value = _asked("augmented", self.visit(target.value), target.attr)
        else:
            target.value = _asked("items_filled", self.visit(target.value))
            target.slice = self.visit(target.slice)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _asked("iterated", node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = _asked("iterated", node.iter)
        return node

    def visit_withitem(self, node: ast.withitem) -> ast.AST:
        self.generic_visit(node)
        node.context_expr = _asked("entered", node.context_expr)
        return node

    def visit_Global(self, node: ast.Global) -> Any:
        held: list[ast.expr] = [ast.Constant(name) for name in node.names]
        names = ast.copy_location(ast.Tuple(held, ast.Load()), node)
        return [node, ast.copy_location(ast.Expr(_asked("variables", names)), node)]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.args = self.visit(node.args)
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        body: list[ast.stmt] = []
        for statement in node.body:
            made = self.visit(statement)
            body += made if isinstance(made, list) else [made]
        node.body = body
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node
