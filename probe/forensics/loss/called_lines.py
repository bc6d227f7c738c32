"""Statements that are run whole, up to the call of backward: their functions made the loss and sent it back.

For a loss that is kept on an attribute or in a dictionary, and for a function that has called both the model
and backward and has returned. `loss_code.py` cuts single statements out of a function that is still running.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from ...errors import ReplayError
from ...threads.stacks import RawFrame, place_in_code, spot_of
from ...threads.whereabouts import is_library
from ..effects.guarded_source import compile_guarded
from .backward_stop import REFRESH
from .call_arguments import variables_of
from .code_source import source_of
from .loss_blocks import LossSpots, common_block, is_before
from .loss_code import LossCode
from .loss_effects import Effects, has_yield, refuse_iterators
from .shared_variables import SharedVariables


def find_called_code(
    forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame], frame: FrameType | None
) -> LossCode:
    """Return the statements from the one that led to the model's call to the one that led to backward.

    Of those between only what writes a variable or an attribute is kept that a kept one reads.

    Args:
        forward_site: frames of the model's call, outermost first.
        backward_site: frames of the call of backward.
        frame: of the present call.

    Raises:
        ReplayError: there is no function of the script's that has called both and is still running, or its
            statements cannot be run again.
    """
    running, spots = _running_place(forward_site, backward_site, frame)
    code, namespace = running.f_code, variables_of(running)
    block, begin, end = common_block(source_of(code), spots)
    if begin == end and not isinstance(block[begin], ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
        raise ReplayError("the loss is made in the head of the statement that calls backward")
    kept, effects = _kept(block[begin : end + 1], namespace)
    refuse_iterators(effects)
    later = [statement for statement in block[end + 1 :] if is_before(statement, spots.now)]
    _refuse_overwritten(later, kept, effects, namespace)
    body = [_NoReturn().visit(copy.deepcopy(one)) for one in kept]
    tree = ast.fix_missing_locations(ast.Module(body=body, type_ignores=[]))
    text = ast.unparse(tree)
    read = {name for one in effects for name in one.reads}
    used = read.union(*(one.writes for one in effects))
    shared = SharedVariables(running, used, {name for one in effects for name in one.shared})
    tree.body = [part for one in tree.body for part in (one, _refreshing(one))][:-1]
    cut = _compiled(tree, code)
    return LossCode(
        code=cut,
        namespace=namespace,
        enters_blocks=isinstance(kept[0], ast.With),
        text=text,
        names=frozenset(read & namespace.keys()),
        is_handed_on=True,
        objects=tuple(held for one in effects for held in one.objects),
        until=place_in_code(backward_site[-1]),
        shared=shared,
    )


def _running_place(
    forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame], frame: FrameType | None
) -> tuple[FrameType, LossSpots]:
    """The innermost function that is still running of those that led to both calls."""
    running: dict[CodeType, FrameType] = {}
    while frame is not None:
        running.setdefault(frame.f_code, frame)
        frame = frame.f_back
    forward = {id(code): offset for code, offset in forward_site}
    for code, offset in reversed(backward_site):
        if id(code) in forward and code in running and not is_library(code.co_filename):
            now = running[code]
            return now, LossSpots(*(spot_of(code, at) for at in (forward[id(code)], offset, now.f_lasti)))
    raise ReplayError("no function that has called both the model and backward is still running")


def _kept(block: list[ast.stmt], namespace: dict[str, Any]) -> tuple[list[ast.stmt], list[Effects]]:
    """The first and the last statement, and what they depend on; each with its effects."""
    if has_yield(block):
        raise ReplayError("the loss is made by statements that wait for others")
    last = Effects.of(block[-1], namespace)
    first = Effects.of(block[0], namespace) if len(block) > 1 else last
    needed = last.reads | first.reads
    kept, effects = [block[-1]], [last]
    for statement in reversed(block[1:-1]):
        found = Effects.of(statement, namespace)
        if found.writes & needed:
            needed |= found.reads
            kept.append(statement)
            effects.append(found)
    if len(block) > 1:
        kept.append(block[0])
        effects.append(first)
    return kept[::-1], effects[::-1]


def _refuse_overwritten(
    later: Sequence[ast.stmt], kept: Sequence[ast.stmt], effects: Sequence[Effects], namespace: dict[str, Any]
) -> None:
    """Refuse variables of the function that were bound anew since."""
    made = {name for one in effects for name in one.writes}
    read = {name for one in effects for name in one.reads}
    for statement in later:
        if stale := (Effects.of(statement, namespace).writes & read) - made:
            raise ReplayError(f"{min(stale)} is no longer what the loss was made of")


class _NoReturn(ast.NodeTransformer):
    """Makes plain expressions of the `return`s of a function: its statements are run outside of it."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        """The value alone."""
        return ast.copy_location(ast.Expr(node.value or ast.Constant(None)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        """Functions inside keep theirs."""
        return node


def _refreshing(before: ast.stmt) -> ast.stmt:
    call = ast.Expr(ast.Call(ast.Name(REFRESH, ast.Load()), [], []))
    return ast.fix_missing_locations(ast.copy_location(call, before))


def _compiled(tree: ast.Module, code: CodeType) -> CodeType:
    try:
        cut = compile_guarded(tree, code.co_filename)
    except (SyntaxError, ValueError):
        raise ReplayError("the statements that made the loss cannot be run by themselves") from None
    return cut.replace(co_name=code.co_name, co_qualname=code.co_qualname)
