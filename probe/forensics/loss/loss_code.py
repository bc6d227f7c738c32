"""The lines of the script that made a loss of a forward, cut out of its source so that they can run again.

Of the statements between the model's call and `backward` only those are kept that the loss depends on: a
replay must not log, print or step a second time. What cannot be cut out cleanly is refused. Reads source and
the locals of a frame, runs nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeVar

from torch import Tensor

from ...errors import ReplayError
from ...threads.stacks import RawFrame, Spot, spot_of
from .code_source import source_of

RESULT: Final = "__nanscope_loss__"
"""What the code leaves in its namespace."""
_COMPOUND: Final = (ast.If, ast.With, ast.For)
_ENDS: Final = (ast.Try, ast.While, ast.Match, ast.AsyncWith, ast.AsyncFor)


_Node = TypeVar("_Node", bound=ast.AST)


class LossSpots(NamedTuple):
    """Where in its file a step called the model and backward, and where it is now."""

    forward: Spot
    backward: Spot
    now: Spot

    def moved(self, by: int) -> LossSpots:
        """The same places, with lines counted from elsewhere."""
        return LossSpots(*(Spot(spot.line + by, spot.column) for spot in self))


class LossCode(NamedTuple):
    """Statements from the model's call to the loss; to be executed with a copy of the namespace."""

    code: CodeType
    namespace: dict[str, Any]
    """Globals and locals of the function, as they are now; names under which the code finds its values."""
    enters_blocks: bool
    """Whether it begins with a `with` around the model's call, which may switch autocast on by itself."""
    text: str
    """The statements, in the form that `ast.unparse` gives them."""
    names: frozenset[str]
    """Of the namespace: what the statements read of it."""
    is_handed_on: bool = False
    """Whether the line gives the loss to a function that calls backward: no `loss.backward()`."""


class LossPlace(NamedTuple):
    """The running function that has called the model and backward."""

    code: CodeType
    frame: FrameType
    spots: LossSpots


def find_loss_code(
    forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame], frame: FrameType | None
) -> LossCode:
    """Cut out what made the loss that backward was called on.

    Args:
        forward_site: frames of the model's call, outermost first.
        backward_site: frames of the call of backward.
        frame: of the present call; the function that called both must still be running.

    Raises:
        ReplayError: the lines cannot be told, or depend on what has changed since.
    """
    place = find_loss_place(forward_site, backward_site, frame)
    return cut_loss_code(place.code, place.spots, {**place.frame.f_globals, **place.frame.f_locals})


def find_loss_place(
    forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame], frame: FrameType | None
) -> LossPlace:
    """Find the function; see `find_loss_code`.

    Raises:
        ReplayError: there is none, or it has returned.
    """
    code, made, offset = _led_to_both(forward_site, backward_site)
    if code is None:
        raise ReplayError("no function has called both the model and backward")
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        raise ReplayError("the function that called backward has returned")
    spots = LossSpots(*(spot_of(code, at) for at in (made, offset, frame.f_lasti)))
    return LossPlace(code, frame, spots)


def _led_to_both(
    forward_site: Sequence[RawFrame], backward_site: Sequence[RawFrame]
) -> tuple[CodeType | None, int, int]:
    """The function that led to both calls, and where: a trainer may call backward for the script.

    Where all hooks of a trainer go through one function, that has done so in two calls of its own: from one
    place. The function that has called it twice is the one.
    """
    forward = {id(code): offset for code, offset in forward_site}
    shared = [(c, forward[id(c)], o) for c, o in reversed(backward_site) if id(c) in forward]
    apart = [found for found in shared if found[1] != found[2]]
    return next(iter(apart or shared), (None, 0, 0))


def cut_loss_code(code: CodeType, spots: LossSpots, namespace: dict[str, Any]) -> LossCode:
    """Cut the statements that made a loss out of a function's source.

    Args:
        code: of the function.
        spots: in its file.
        namespace: what the statements will find.

    Raises:
        ReplayError: the lines cannot be told, or depend on what has changed since.
    """
    statements, is_handed_on = _cut_out(source_of(code), spots, namespace)
    module = ast.fix_missing_locations(ast.Module(body=statements, type_ignores=[]))
    cut = compile(module, code.co_filename, "exec", dont_inherit=True)
    cut = cut.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    read = {node.id for node in _walk(module, ast.Name) if isinstance(node.ctx, ast.Load)}
    return LossCode(
        code=cut,
        namespace=namespace,
        enters_blocks=isinstance(statements[0], ast.With),
        text=ast.unparse(module),
        names=frozenset(read & namespace.keys()),
        is_handed_on=is_handed_on,
    )


def _cut_out(
    body: list[ast.stmt], spots: LossSpots, namespace: Mapping[str, Any]
) -> tuple[list[ast.stmt], bool]:
    """The statements that make the loss, and one that gives it its name; whether it is handed on."""
    block, begin, end = _common_block(body, spots)
    called = _loss_expression(block[end], spots.backward, namespace)
    loss = called or _handed_on(block[end], spots.backward, namespace)
    needed = _loaded(loss)
    kept = _cut(block[begin:end], needed)
    if begin != end and not (kept and _start(kept[0]) == _start(block[begin])):
        raise ReplayError("the loss does not depend on the model's call before it")
    changed = {name for statement in kept for name in _assigned(statement)}
    changed |= {name for s in block[end + 1 :] if _is_before(s, spots.now) for name in _assigned(s)}
    defined: set[str] = set()
    _refuse_stale(kept, defined, changed)
    _refuse_stale([ast.copy_location(ast.Expr(loss), loss)], defined, changed)
    result = ast.Assign(targets=[ast.Name(RESULT, ast.Store())], value=loss, lineno=loss.lineno)
    return [*kept, ast.copy_location(result, loss)], called is None


def _refuse_stale(statements: Iterable[ast.stmt], defined: set[str], changed: set[str]) -> None:
    """Refuse to read a name of the frame that was bound anew since the statements first ran."""
    for statement in statements:
        heads = list(_heads(statement)) if isinstance(statement, _COMPOUND) else [statement]
        for head in heads:
            if stale := (_loaded(head) - defined) & changed:
                raise ReplayError(f"{min(stale)} is no longer what the loss was made of")
        if isinstance(statement, _COMPOUND):
            targets = [statement.target] if isinstance(statement, ast.For) else heads
            defined |= {name for target in targets for name in _assigned(target)}
            _refuse_stale([*statement.body, *getattr(statement, "orelse", [])], defined, changed)
        else:
            defined |= set(_assigned(statement))


def _common_block(body: list[ast.stmt], spots: LossSpots) -> tuple[list[ast.stmt], int, int]:
    """The innermost list of statements with both calls in it, and which statements they are."""
    block = body
    while True:
        begin, end = (_index(block, spot) for spot in (spots.forward, spots.backward))
        if begin is None or end is None or begin > end:
            raise ReplayError("the model was not called before backward in the same block")
        inner = [
            part
            for part in _blocks(block[begin])
            if _index(part, spots.forward) is not None and _index(part, spots.backward) is not None
        ]
        if begin != end or not inner:
            return block, begin, end
        block = inner[0]


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    lists = [value for _, value in ast.iter_fields(statement) if isinstance(value, list)]
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    return [part for part in [*lists, *handlers] if part and isinstance(part[0], ast.stmt)]


def _index(block: list[ast.stmt], spot: Spot) -> int | None:
    return next((i for i, statement in enumerate(block) if _holds(statement, spot)), None)


def _holds(node: ast.stmt | ast.expr, spot: Spot) -> bool:
    """Whether a place is in a piece of source; where columns are not known, in one of its lines."""
    last = node.end_lineno or node.lineno
    if spot.column is None:
        return node.lineno <= spot.line <= last
    return _start(node) <= (spot.line, spot.column) < (last, node.end_col_offset or sys.maxsize)


def _start(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_before(statement: ast.stmt, spot: Spot) -> bool:
    return _start(statement) < (spot.line, sys.maxsize if spot.column is None else spot.column)


def _loss_expression(statement: ast.stmt, spot: Spot, namespace: Mapping[str, Any]) -> ast.expr | None:
    """What `backward` is called on, or with: a tensor's own method, a trainer's, or `torch.autograd.grad`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and _name_called(node) == "grad" and _holds(node, spot):
            given = [*node.args, *(item.value for item in node.keywords if item.arg == "outputs")]
            if given:
                return given[0]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "backward" and _holds(node, spot):
            owner = node.func.value
            value = _plain_value(owner, namespace)
            if value is None or isinstance(value, Tensor):
                return owner
            if node.args:
                return node.args[0]
    return None


def _handed_on(statement: ast.stmt, spot: Spot, namespace: Mapping[str, Any]) -> ast.expr:
    """The one argument that can be the loss, of a call in which backward is called: `self.update(loss)`."""
    calls = [node for node in _walk(statement, ast.Call) if _holds(node, spot)]
    inner = calls[-1] if calls else None
    arguments = [] if inner is None else [*inner.args, *(keyword.value for keyword in inner.keywords)]
    losses = [argument for argument in arguments if _is_scalar(_plain_value(argument, namespace))]
    made = [argument for argument in arguments if isinstance(argument, ast.Call)]
    found = losses or made
    if len(found) != 1:
        raise ReplayError("what backward was called on is not in the line that called it")
    return found[0]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad


def _name_called(call: ast.Call) -> str | None:
    """`grad` of `torch.autograd.grad(...)` and of `grad(...)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _plain_value(expression: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """The value of a name, or of a plain attribute of one; None of anything else."""
    if isinstance(expression, ast.Name):
        return namespace.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = _plain_value(expression.value, namespace)
        attributes = getattr(owner, "__dict__", {})
        return attributes.get(expression.attr) if isinstance(attributes, dict) else None
    return None


def _cut(block: Sequence[ast.stmt], needed: set[str]) -> list[ast.stmt]:
    """Keep what the needed names depend on, the last statement first; `needed` grows."""
    kept = [part for statement in reversed(block) if (part := _cut_statement(statement, needed)) is not None]
    kept.reverse()
    return kept


def _cut_statement(statement: ast.stmt, needed: set[str]) -> ast.stmt | None:
    if isinstance(statement, _COMPOUND):
        return _cut_compound(statement, needed)
    if isinstance(statement, ast.Expr):
        # `parts.append(loss)`: what is appended is needed where the list is.
        call = statement.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            return None
        name = _base_name(call.func.value)
        if name is None or name not in needed:
            return None
    elif not needed.intersection(_assigned(statement)):
        return None
    elif isinstance(statement, _ENDS) or not isinstance(
        statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef
    ):
        raise ReplayError("the loss is made in statements that cannot be run again")
    needed |= _loaded(statement)
    return statement


def _cut_compound(statement: ast.If | ast.With | ast.For, needed: set[str]) -> ast.stmt | None:
    while True:
        before = set(needed)
        body = _cut(statement.body, needed)
        orelse = [] if isinstance(statement, ast.With) else _cut(statement.orelse, needed)
        if not body and not orelse:
            return None
        for head in _heads(statement):
            needed |= _loaded(head)
        # What one round of a loop needs may be made by the one before.
        if needed == before:
            break
    fields = {name: getattr(statement, name) for name in statement._fields}
    fields |= {"body": body or [ast.copy_location(ast.Pass(), statement)]}
    if not isinstance(statement, ast.With):
        fields["orelse"] = orelse
    return ast.copy_location(type(statement)(**fields), statement)


def _heads(statement: ast.If | ast.With | ast.For) -> Iterable[ast.AST]:
    if isinstance(statement, ast.With):
        return statement.items
    return [statement.test] if isinstance(statement, ast.If) else [statement.iter]


def _loaded(node: ast.AST) -> set[str]:
    """Names that are read from outside of `node`; of an assignment in place also the one that is assigned."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    names |= {n.target.id for n in _walk(node, ast.AugAssign) if isinstance(n.target, ast.Name)}
    return names - _own_names(node)


def _assigned(node: ast.AST) -> list[str]:
    """Names that are bound, and those whose items or attributes are written."""
    own = _own_names(node)
    found = [n.id for n in _walk(node, ast.Name) if isinstance(n.ctx, ast.Store) and n.id not in own]
    places: list[ast.Attribute | ast.Subscript] = [*_walk(node, ast.Attribute), *_walk(node, ast.Subscript)]
    found += [name for n in places if isinstance(n.ctx, ast.Store) and (name := _base_name(n))]
    return found + [n.name for n in _walk(node, ast.FunctionDef)]


def _own_names(node: ast.AST) -> set[str]:
    """Names that comprehensions and functions inside of `node` bind for themselves."""
    targets = [n.target for n in _walk(node, ast.comprehension)]
    names = {n.id for target in targets for n in _walk(target, ast.Name)}
    return names | {n.arg for n in _walk(node, ast.arg)}


def _walk(node: ast.AST, kind: type[_Node]) -> Iterator[_Node]:
    return (n for n in ast.walk(node) if isinstance(n, kind))


def _base_name(expression: ast.expr) -> str | None:
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None
