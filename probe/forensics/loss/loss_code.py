"""The lines of the script that made a loss of a forward, cut out of its source so that they can run again.

Of the statements between the model's call and `backward` only those are kept that the loss depends on: a
replay must not log, print or step a second time. What cannot be cut out cleanly is refused. Reads source and
the locals of a frame, runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from torch import Tensor

from ...errors import KeptElsewhereError, NotInLastLinesError, ReplayError
from ...threads.stacks import CodePlace, RawFrame, Spot, spot_of
from ..effects.guarded_source import compile_guarded
from .call_arguments import variables_of
from .code_source import source_of
from .loss_blocks import COMPOUND, common_block, done_before, heads, holds, is_before, path_to, start
from .loss_blocks import LossSpots as LossSpots
from .loss_effects import Effects, refuse_iterators
from .loss_names import assigned, base_name, deleted, fills, loaded, plain_value, walk
from .loss_stale import stale_names
from .shared_variables import SharedVariables

RESULT: Final = "__nanscope_loss__"
"""What the code leaves in its namespace."""
_ENDS: Final = (ast.Try, ast.While, ast.Match, ast.AsyncWith, ast.AsyncFor)


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
    """Whether the lines are known less surely: their loss must be made of the same operations as the step's.

    Where the line gives the loss to a function that calls backward, or they begin before the model's call.
    """
    is_last: bool = False
    """Whether they begin after the newest call of the model: they give a loss that is bad, no gradients."""
    objects: tuple[Any, ...] = ()
    """What else the statements' functions read."""
    until: CodePlace | None = None
    """The call of backward at which they end; None where they leave the loss by themselves."""
    shared: SharedVariables | None = None
    """Variables that inner functions assign."""


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
    return cut_loss_code(place.code, place.spots, variables_of(place.frame))


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
    return _compiled(code, statements, namespace, is_handed_on=is_handed_on)


def cut_last_lines(code: CodeType, spots: LossSpots, namespace: dict[str, Any]) -> LossCode:
    """Cut what made a loss since the newest call of the model, which may be in another function.

    They read what was collected over many calls as it is now.

    Args:
        code: of the function that called backward.
        spots: in its file; that of the model's call counts where it lies in the function.
        namespace: what the statements will find.

    Raises:
        ReplayError: as `cut_loss_code`.
    """
    body = source_of(code)
    block, _, end = common_block(body, spots._replace(forward=spots.backward))
    loss = _loss_expression(block[end], spots.backward, namespace)
    if loss is None:
        raise NotInLastLinesError("the function that called backward has not made the loss")
    needed = loaded(loss)
    result = ast.Assign(targets=[ast.Name(RESULT, ast.Store())], value=loss, lineno=loss.lineno)
    before = done_before(body, block, spots.backward)
    called = [number for number, statement in enumerate(before) if holds(statement, spots.forward)]
    kept = _cut(before[called[-1] + 1 if called else 0 :], needed)
    whole = [*kept, ast.copy_location(result, loss)]
    later = [statement for statement in block[end + 1 :] if is_before(statement, spots.now)]
    if stale := stale_names(whole, later) or needed & deleted([*before, *later]):
        raise ReplayError(f"{min(stale)} is no longer what the loss was made of")
    return _compiled(code, whole, namespace, is_handed_on=True)._replace(is_last=True)


def _compiled(
    code: CodeType, statements: list[ast.stmt], namespace: dict[str, Any], *, is_handed_on: bool
) -> LossCode:
    refuse_iterators(Effects.of(statement, namespace) for statement in statements)
    module = ast.fix_missing_locations(ast.Module(body=statements, type_ignores=[]))
    cut = compile_guarded(module, code.co_filename)
    cut = cut.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    read = {node.id for node in walk(module, ast.Name) if isinstance(node.ctx, ast.Load)}
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
    """The statements that make the loss, and one that names it; see `LossCode.is_handed_on`."""
    block, begin, end = common_block(body, spots)
    called = _loss_expression(block[end], spots.backward, namespace)
    loss = called or _handed_on(block[end], spots.backward, namespace)
    needed = loaded(loss)
    result = ast.Assign(targets=[ast.Name(RESULT, ast.Store())], value=loss, lineno=loss.lineno)
    tail = _tail(block[end], spots.backward, ast.copy_location(result, loss), needed)
    kept = _cut(block[begin:end], needed)
    if begin != end and not (kept and start(kept[0]) == start(block[begin])):
        raise KeptElsewhereError("the loss does not depend on the model's call before it")
    later = [s for s in [*block[end + 1 :], *_behind(block[end], spots.backward)] if is_before(s, spots.now)]
    gone = needed & deleted([*block[begin : end + 1], *later])
    done = done_before(body, block, spots.forward)
    before = _made_before(done, gone) if gone else []
    if missing := sorted(name for name in gone if name not in namespace and name not in _names_of(before)):
        raise ReplayError(f"{missing[0]} was deleted after the loss was made of it")
    whole = [*before, *kept, *tail]
    # What was deleted has the value that the function was called with.
    given = gone & namespace.keys()
    if carried := stale_names(whole, later, given):
        # A sum or a list that is begun before the model's call, which may be in a loop.
        whole = [*_made_before(done, gone | carried), *kept, *tail]
        if stale := stale_names(whole, later, given):
            raise ReplayError(f"{min(stale)} is no longer what the loss was made of")
    return whole, called is None or bool(gone)


def _made_before(statements: Sequence[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """The statements before the model's call that made what was deleted, or written, after it."""
    plain = [s for s in statements if isinstance(s, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr)]
    if others := names & _names_of(s for s in statements if s not in plain):
        raise ReplayError(f"{min(others)} is no longer what the loss was made of")
    return _cut(plain, set(names))


def _names_of(statements: Iterable[ast.stmt]) -> set[str]:
    return {name for statement in statements for name in assigned(statement)}


def _tail(statement: ast.stmt, spot: Spot, result: ast.stmt, needed: set[str]) -> list[ast.stmt]:
    """What the statement of backward does for the loss before it: of an `if` or `with` around it."""
    tail = [result]
    for compound, block, position in reversed(path_to(statement, spot)):
        inner = _cut(block[:position], needed)
        is_tried = isinstance(compound, ast.Try) and block is compound.body
        if inner and not (is_tried or isinstance(compound, ast.If | ast.With)):
            raise ReplayError("the loss is made in the loop that calls backward")
        tail = [*inner, *tail]
        if inner and isinstance(compound, ast.With):
            needed |= {name for item in compound.items for name in loaded(item)}
            tail = [ast.copy_location(ast.With(items=compound.items, body=tail), compound)]
    return tail


def _behind(statement: ast.stmt, spot: Spot) -> Iterator[ast.stmt]:
    """The statements inside of that of backward that come after it."""
    for _, block, position in path_to(statement, spot):
        yield from block[position + 1 :]


def _loss_expression(statement: ast.stmt, spot: Spot, namespace: Mapping[str, Any]) -> ast.expr | None:
    """What `backward` is called on, or with: a tensor's own method, a trainer's, or `torch.autograd.grad`.

    Of a generator, what it yields there.
    """
    for one in walk(statement, ast.Yield):
        if one.value is not None and start(one) == (spot.line, spot.column):
            return _only_loss(one.value, namespace)
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and _name_called(node) == "grad" and holds(node, spot):
            given = [*node.args, *(item.value for item in node.keywords if item.arg == "outputs")]
            if given:
                return given[0]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "backward" and holds(node, spot):
            owner = node.func.value
            value = plain_value(owner, namespace)
            if value is None or isinstance(value, Tensor):
                return owner
            if node.args:
                return node.args[0]
    return None


def _only_loss(yielded: ast.expr, namespace: Mapping[str, Any]) -> ast.expr:
    """`loss` of `yield name, loss`."""
    parts = yielded.elts if isinstance(yielded, ast.Tuple) else []
    losses = [part for part in parts if _is_scalar(plain_value(part, namespace))]
    return losses[0] if len(losses) == 1 else yielded


def _handed_on(statement: ast.stmt, spot: Spot, namespace: Mapping[str, Any]) -> ast.expr:
    """The one argument that can be the loss, of a call in which backward is called: `self.update(loss)`."""
    calls = [node for node in walk(statement, ast.Call) if holds(node, spot)]
    inner = calls[-1] if calls else None
    arguments = [] if inner is None else [*inner.args, *(keyword.value for keyword in inner.keywords)]
    losses = [argument for argument in arguments if _is_scalar(plain_value(argument, namespace))]
    made = [argument for argument in arguments if isinstance(argument, ast.Call)]
    found = losses or made
    if not found:
        raise KeptElsewhereError(
            "the loss was kept elsewhere, on an attribute for example, and is not an argument here"
        )
    if len(found) > 1:
        raise ReplayError("which argument of the call that led to backward is the loss cannot be told")
    return found[0]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad


def _name_called(call: ast.Call) -> str | None:
    """`grad` of `torch.autograd.grad(...)` and of `grad(...)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _cut(block: Sequence[ast.stmt], needed: set[str]) -> list[ast.stmt]:
    """Keep what the needed names depend on, the last statement first; `needed` grows."""
    kept = [part for statement in reversed(block) if (part := _cut_statement(statement, needed)) is not None]
    kept.reverse()
    return kept


def _cut_statement(statement: ast.stmt, needed: set[str]) -> ast.stmt | None:
    if isinstance(statement, COMPOUND):
        return _cut_compound(statement, needed)
    if isinstance(statement, ast.Expr):
        # `parts.append(loss)`: what is appended is needed where the list is.
        call = statement.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            return None
        if not fills(call.func.attr):
            return None
        name = base_name(call.func.value)
        if name is None or name not in needed:
            return None
    elif not needed.intersection(assigned(statement)):
        return None
    elif isinstance(statement, _ENDS) or not isinstance(
        statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef
    ):
        raise ReplayError("the loss is made in statements that cannot be run again")
    needed |= loaded(statement)
    return statement


def _cut_compound(statement: ast.If | ast.With | ast.For, needed: set[str]) -> ast.stmt | None:
    while True:
        before = set(needed)
        body = _cut(statement.body, needed)
        orelse = [] if isinstance(statement, ast.With) else _cut(statement.orelse, needed)
        if not body and not orelse:
            return None
        for head in heads(statement):
            needed |= loaded(head)
        # What one round of a loop needs may be made by the one before.
        if needed == before:
            break
    fields = {name: getattr(statement, name) for name in statement._fields}
    fields |= {"body": body or [ast.copy_location(ast.Pass(), statement)]}
    if not isinstance(statement, ast.With):
        fields["orelse"] = orelse
    return ast.copy_location(type(statement)(**fields), statement)
