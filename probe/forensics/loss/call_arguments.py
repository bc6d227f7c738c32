"""The variables of a running function, and of parameters that it has deleted what it was called with.

Reads frames and source, runs nothing.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from types import FrameType
from typing import Any

from ...errors import ReplayError
from ...threads import frame_variables
from ...threads.stacks import Spot, spot_of
from .loss_blocks import holds
from .loss_names import walk


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return globals and locals of a function, as they are now; the frame keeps none of them alive.

    A global that has the name of a local is none of its variables, deleted or not.

    Raises:
        ReplayError: the function has called `locals()`, whose result would change by the look.
    """
    code = frame.f_code
    names = {*code.co_varnames, *code.co_cellvars}
    found = {name: value for name, value in frame.f_globals.items() if name not in names}
    own = _locals_of(frame)
    found |= own
    parameters = code.co_varnames[: code.co_argcount]
    if any(name not in found for name in parameters):
        found = _passed(frame, parameters, own) | found
    return found


def _locals_of(frame: FrameType) -> dict[str, Any]:
    with frame_variables.variables_of(frame) as held:
        if frame_variables.hides_variables(frame):
            raise ReplayError(f"{frame.f_code.co_name} calls locals(), so its variables are not looked at")
        return dict(held)


def _passed(frame: FrameType, parameters: tuple[str, ...], own: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller gave for the parameters, as far as it has it in plain variables."""
    caller = frame.f_back
    call = None if caller is None else _call_at(caller)
    if caller is None or call is None or any(isinstance(given, ast.Starred) for given in call.args):
        return {}
    # A method is called without its first parameter.
    skipped = len(parameters) and isinstance(call.func, ast.Attribute) and parameters[0] in own
    is_method = skipped and getattr(own[parameters[0]], frame.f_code.co_name, None) is not None
    given = dict(zip(parameters[1 if is_method else 0 :], call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    plain = {name: value.id for name, value in given.items() if isinstance(value, ast.Name)}
    with frame_variables.variables_of(caller) as local:
        known = caller.f_globals | local
    return {name: known[variable] for name, variable in plain.items() if variable in known}


def _call_at(caller: FrameType) -> ast.Call | None:
    """The call that a frame is in."""
    spot = spot_of(caller.f_code, caller.f_lasti)
    if spot.column is None:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(caller.f_code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    found = [node for node in walk(tree, ast.Call) if holds(node, Spot(spot.line, spot.column))]
    # Outermost first: `f(x).backward` begins where `f(x)` does, so take the one that begins there last.
    begin = [node for node in found if (node.lineno, node.col_offset) == (spot.line, spot.column)]
    return begin[0] if len(begin) == 1 else None
