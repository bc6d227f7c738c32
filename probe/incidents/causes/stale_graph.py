"""A graph whose values were changed before its backward, or that a backward has freed before."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...compat import torch_memory
from .flow import (
    backward_calls,
    calls_before,
    calls_in,
    function_source,
    in_place_statements,
    loop_around,
    values_used,
)
from .scene import Cause, Function, Place, Scene, names_in, source, tensors_in

# ---------------------------------------------------------------------------- changed in place


def _modified(scene: Scene, match: re.Match[str]) -> Cause | None:
    shape = tuple(int(size) for size in match[1].split(",") if size.strip())
    version = int(match[2])
    place = scene.innermost
    function = None if place is None else scene.function(place)
    if place is None or function is None:
        return None
    return _stepped(scene, place, function, shape, version) or _written(
        scene, place, function, shape, version
    )


def _stepped(
    scene: Scene, place: Place, function: Function, shape: tuple[int, ...], version: int
) -> Cause | None:
    """A parameter that an optimizer has updated between a forward and its backward."""
    alike = {
        name: parameter
        for name, parameter in scene.parameters.items()
        if torch_memory.version(parameter) == version and tuple(parameter.shape) in (shape, shape[::-1])
    }
    for name, parameter in alike.items():
        for call in calls_in(function):
            optimizer = _stepping(scene, call, place)
            if optimizer is None or not any(parameter is each for each in _updated(optimizer)):
                continue
            forward = calls_before(function, place.line, _calls_owner(scene, place, parameter))
            made = f" at {scene.at(forward, place)}" if forward else ""
            advice = (
                "Run the forward again after the "
                f"update{', ' + scene.at(forward, place) if forward else ''}, or "
                f"call `{source(call)}` only when every backward that needs the old weights has run.",
                "`retain_graph=True` keeps the graph, not the old weights.",
            )
            return Cause(
                f"the parameter `{name}` was changed by `{source(call)}` at {scene.at(call.lineno, place)}, "
                f"after the forward{made} that still needs its old value",
                advice,
            )
    return None


def _written(
    scene: Scene, place: Place, function: Function, shape: tuple[int, ...], version: int
) -> Cause | None:
    """An activation that the script or a module has written into."""
    held = {
        name: value
        for name, value in scene.variables(place).items()
        if isinstance(value, Tensor)
        and torch_memory.version(value) >= version
        and tuple(value.shape) == shape
    }
    advice = (
        "Write the result into a new tensor (`x = x + y` instead of `x += y`, `torch.relu(x)` instead of "
        "`inplace=True`), or write into `x.clone()`.",
    )
    for name, line, text in in_place_statements(function):
        if name in held:
            return Cause(
                f"`{name}` was changed in place by `{text}` at {scene.at(line, place)}, "
                "and backward needs the value that it had before",
                advice,
            )
    for module in _modules(scene):
        for name, line, text, file in _forward_statements(module):
            where = scene.at(line, place) if file == place.file else f"{file.rpartition('/')[2]}:{line}"
            return Cause(
                f"`{name}` was changed in place by `{text}` at {where}, in the forward of "
                f"{scene.name_of_module(module)}, and backward needs the value that it had before",
                advice,
            )
    inplace = [module for module in _modules(scene) if getattr(module, "inplace", False) is True]
    if inplace:
        named = scene.name_of_module(inplace[0])
        return Cause(
            f"a tensor that backward needs was changed in place; {named} writes over its input "
            f"(`inplace=True` of {type(inplace[0]).__name__})",
            ("Set `inplace=False` there.", *advice),
        )
    return None


def _forward_statements(module: nn.Module) -> Iterator[tuple[str, int, str, str]]:
    forward = getattr(type(module), "forward", None)
    code = getattr(forward, "__code__", None)
    if code is None or type(module).__module__.startswith("torch."):
        return
    function = function_source(code)
    for name, line, text in in_place_statements(function) if function is not None else ():
        if name != code.co_varnames[0]:
            yield name, line, text, code.co_filename


# ---------------------------------------------------------------------------- a second time


def _second_time(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    function = None if place is None else scene.function(place)
    if place is None or function is None:
        return None
    return (
        _carried(scene, place, function)
        or _called_twice(scene, place, function)
        or _kept_on_module(scene)
        or _made_before_loop(scene, place, function)
    )


def _carried(scene: Scene, place: Place, function: Function) -> Cause | None:
    """A value of the step before that is read by this one."""
    loop = loop_around(function, place.line)
    if loop is None:
        return None
    held = scene.variables(place)
    for name, line in values_used(loop).carried:
        if _has_graph(held.get(name)):
            return Cause(
                f"`{name}`, which comes from step {max(scene.step - 1, 0)} "
                f"({scene.at(line, place)}), still has "
                "that step's graph, which its backward has freed",
                (
                    f"Detach it before it is used again: `{_detached(name, held[name])}`.",
                    "`retain_graph=True` would keep the graphs of all steps: slower with each "
                    "one, until memory "
                    "runs out.",
                ),
            )
    return None


def _called_twice(scene: Scene, place: Place, function: Function) -> Cause | None:
    """Two backwards through one graph in the same step."""
    before = [call for call in backward_calls(function) if call.lineno < place.line and not _retains(call)]
    loop = loop_around(function, place.line)
    if loop is not None:
        before = [call for call in before if call.lineno >= loop.lineno]
        if isinstance(loop, ast.For | ast.While) and not before and _inner_loop_repeats(loop, place.line):
            before = [call for call in backward_calls(function) if call.lineno == place.line]
    if not before:
        return None
    first = before[-1]
    here = scene.expression(place)
    again = (
        f"the same backward runs again in the loop at {scene.at(loop.lineno, place)}"
        if first.lineno == place.line and loop is not None
        else f"`{source(first)}` at {scene.at(first.lineno, place)} has freed the graph that "
        f"`{source(here) if here else 'backward'}` at {scene.at(place.line, place)} needs, too"
    )
    return Cause(
        again,
        (
            "Add the losses and call backward once: `(loss_a + loss_b).backward()`.",
            "Or keep the graph in the first call: `backward(retain_graph=True)`; or detach the part that the "
            "second loss does not train.",
        ),
    )


def _inner_loop_repeats(loop: ast.For | ast.While, line: int) -> bool:
    """Whether a loop makes nothing of what its backward is called on."""
    calls = [call for call in ast.walk(loop) if isinstance(call, ast.Call) and call.lineno == line]
    read = {name for call in calls for name in names_in(call.func)}
    made = {name for node in ast.walk(loop) for name in _assigned(node)}
    return bool(read) and not read & made


def _kept_on_module(scene: Scene) -> Cause | None:
    for root in _modules(scene):
        for name, value in dict(vars(root)).items():
            if not name.startswith("_") and not isinstance(value, nn.Module) and _has_graph(value):
                owner = scene.name_of_module(root)
                return Cause(
                    f"`{name}`, which {owner} keeps from one call to the next, still has the "
                    "graph of an earlier "
                    "step, which that step's backward has freed",
                    (f"Keep it detached: `self.{name} = {name}.detach()`.",),
                )
    return None


def _made_before_loop(scene: Scene, place: Place, function: Function) -> Cause | None:
    loop = loop_around(function, place.line)
    if loop is None:
        return None
    held = scene.variables(place)
    for name in values_used(loop).outside:
        if _has_graph(held.get(name)):
            line = next((n for n in _lines_of_assignment(function, name) if n < loop.lineno), None)
            where = f" at {scene.at(line, place)}" if line else ""
            return Cause(
                f"`{name}` is computed once{where}, before the loop, and its graph is freed by "
                "the first backward",
                (f"Compute `{name}` anew in each step, or detach it if it is not to be trained.",),
            )
    return None


# ---------------------------------------------------------------------------- shared


def _stepping(scene: Scene, call: ast.Call, place: Place) -> Optimizer | None:
    """The optimizer of `optimizer.step()` or `scaler.step(optimizer)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    for expression in (call.func.value, *call.args):
        value = scene.value(expression, place)
        inner = getattr(value, "optimizer", None)
        for each in (value, inner):
            if isinstance(each, Optimizer):
                return each
    return None


def _updated(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _holds(value: Any, parameter: nn.Parameter) -> bool:
    return isinstance(value, nn.Module) and any(each is parameter for each in value.parameters())


def _calls_owner(scene: Scene, place: Place, parameter: nn.Parameter) -> Callable[[ast.Call], bool]:
    """Whether a call is of a module that owns a parameter."""
    return lambda called: _holds(scene.value(called.func, place), parameter)


def _modules(scene: Scene) -> Iterator[nn.Module]:
    seen: set[int] = set()
    for place in reversed(scene.own):
        for value in scene.variables(place).values():
            for module in value.modules() if isinstance(value, nn.Module) else ():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield module
    if scene.model is not None:
        yield from (module for module in scene.model.modules() if id(module) not in seen)


def _has_graph(value: Any) -> bool:
    return any(each.grad_fn is not None for each in tensors_in(value))


def _detached(name: str, value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{name} = {name}.detach()"
    return f"{name} = {'tuple' if type(value) is tuple else 'list'}(each.detach() for each in {name})"


def _retains(call: ast.Call) -> bool:
    return any(
        keyword.arg == "retain_graph" and getattr(keyword.value, "value", True) for keyword in call.keywords
    )


def _assigned(node: ast.AST) -> set[str]:
    return {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()


def _lines_of_assignment(function: Function, name: str) -> list[int]:
    return sorted(
        (
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        ),
        reverse=True,
    )


TABLE: Final = (
    (r"modified by an inplace operation: \[\S+ \[([\d, ]*)\]\].*?is at version (\d+)", _modified),
    (r"backward through the graph a second time", _second_time),
)
"""Pattern -> who explains it, as in `causes/__init__.py`."""
