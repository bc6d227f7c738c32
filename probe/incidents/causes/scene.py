"""What a traceback still shows of a failing step: lines, variables, modules, optimizers. Runs nothing."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...compat.torch_modules import registries
from ...memory.reachable import function_variables, is_of_user
from ...threads.notebook_cells import shown_name
from ...threads.whereabouts import is_installed

_MOST_MODULES: Final = 20_000
_MOST_TEXT: Final = 80
_MOST_ITEMS: Final = 64
_MOST_DEPTH: Final = 4

Function = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


class Cause(NamedTuple):
    """Why an exception was raised."""

    sentence: str
    """What is wrong, with names, shapes and lines of the run; no full stop at its end."""
    advice: tuple[str, ...] = ()
    """What to do about it, the likeliest first."""


class Place(NamedTuple):
    """A frame of the traceback."""

    frame: FrameType
    offset: int
    line: int

    @property
    def file(self) -> str:
        """Of its code."""
        return self.frame.f_code.co_filename


class Scene:
    """The frames of an exception.

    Args:
        error: the exception.
        trace: its traceback.
        step: number of the step under way.
        model: the naming root; None: not known.
        optimizers: those that update it.
    """

    def __init__(
        self,
        error: BaseException,
        trace: TracebackType | None,
        *,
        step: int,
        model: nn.Module | None,
        optimizers: Sequence[Optimizer],
    ) -> None:
        self.error = error
        self.step = step
        self.model = model
        self._optimizers = optimizers
        self.places = list(_places(trace))

    # -- lines

    @cached_property
    def own(self) -> list[Place]:
        """Frames of the script and its packages, outermost first; torch's and the library's are left out."""
        return [place for place in self.places if is_of_user(place.frame) and not is_installed(place.file)]

    @property
    def innermost(self) -> Place | None:
        """The script's innermost frame."""
        return self.own[-1] if self.own else None

    def at(self, line: int, place: Place | None = None) -> str:
        """Write "line 22"; with its file where that is not the one of the innermost line."""
        place = place or self.own[-1]
        return f"line {line}" if place.file == self.own[-1].file else f"{shown_name(place.file)}:{line}"

    def file_source(self, place: Place) -> ast.Module | None:
        """Return the source of a frame's whole file."""
        code = place.frame.f_code
        try:
            return ast.parse("".join(linecache.getlines(code.co_filename, place.frame.f_globals)))
        except (SyntaxError, ValueError, RecursionError):
            return None

    def function(self, place: Place) -> Function | None:
        """Return the source of a frame's function; of a module's own code that of the module."""
        code, tree = place.frame.f_code, self.file_source(place)
        if tree is None or code.co_name.startswith(
            "<"
        ):  # a module, or a comprehension in one of its functions
            return tree
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first == code.co_firstlineno:
                    return node
        return None

    def expression(self, place: Place) -> ast.expr | None:
        """Return the call or operation that a frame is at."""
        code = place.frame.f_code
        span = list(code.co_positions())[place.offset // 2 : place.offset // 2 + 1]
        function = self.function(place)
        if not span or function is None:
            return None
        for node in ast.walk(function):
            where = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0), getattr(node, "col_offset", 0)
            if isinstance(node, ast.expr) and (*where, node.end_col_offset) == span[0]:
                return node
        return None

    def statement(self, place: Place) -> ast.stmt | None:
        """Return the innermost statement at a frame's line."""
        function = self.function(place)
        found = [
            node
            for node in ast.walk(function or ast.Module([], []))
            if isinstance(node, ast.stmt) and node.lineno <= place.line <= (node.end_lineno or node.lineno)
        ]
        return min(found, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)

    # -- values

    def value(self, expression: ast.expr | None, place: Place | None = None) -> Any:
        """Return what a name or attributes of one stand for; None for anything that would have to be run."""
        place = place or self.own[-1]
        if isinstance(expression, ast.Name):
            held = function_variables(place.frame)
            return held.get(expression.id, place.frame.f_globals.get(expression.id))
        if isinstance(expression, ast.Attribute):
            return _attribute(self.value(expression.value, place), expression.attr)
        if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
            owner, key = self.value(expression.value, place), expression.slice.value
            if type(owner) in (dict, list, tuple):
                try:
                    return owner[key]
                except (LookupError, TypeError):
                    return None
        return None

    def variables(self, place: Place | None = None) -> dict[str, Any]:
        """Return the variables of a frame, by default of the script's innermost one."""
        return function_variables((place or self.own[-1]).frame)

    def torch_variables(self, function: str) -> dict[str, Any]:
        """Return the variables of the innermost frame of a function of torch; empty where it is not there."""
        for place in reversed(self.places):
            if place.frame.f_code.co_name == function and is_installed(place.file):
                return function_variables(place.frame)
        return {}

    # -- names

    @cached_property
    def module(self) -> nn.Module | None:
        """The innermost module whose forward was running."""
        for place in reversed(self.places):
            code = place.frame.f_code
            if code.co_name == "forward" and code.co_argcount:
                held = function_variables(place.frame).get(code.co_varnames[0])
                if isinstance(held, nn.Module):
                    return held
        return None

    @cached_property
    def module_names(self) -> dict[int, str]:
        """Name of each module by its identity: of the watched model, else by variables of the script."""
        named: dict[int, str] = {}
        for root, prefix in self._roots():
            for name, module in root.named_modules():
                named.setdefault(id(module), f"{prefix}{'.' if prefix and name else ''}{name}")
                if len(named) > _MOST_MODULES:
                    return named
        return named

    def name_of(self, wanted: Any) -> str:
        """Write "`logits`", the variable or the argument that holds a value; "" where none shows it."""
        if isinstance(wanted, Tensor) and (name := self.tensor_names(wanted)):
            return f"`{name}`"
        for place in reversed(self.own):
            expression = self.expression(place)
            for argument in arguments_of(expression):
                if self.value(argument, place) is wanted:
                    return f"`{source(argument)}`"
        return ""

    def named(self, wanted: Any) -> str:
        """Write " `logits`" with a space before it, to follow a noun; "" where nothing shows the name."""
        name = self.name_of(wanted)
        return f" {name}" if name else ""

    def made_by(self, name: str, place: Place | None = None) -> tuple[int, str] | None:
        """Return line and source of the newest assignment of a variable before a frame's line."""
        place = place or self.own[-1]
        function = self.function(place)
        made = [
            node
            for node in ast.walk(function or ast.Module([], []))
            if isinstance(node, ast.Assign)
            and node.lineno < place.line
            and any(
                isinstance(each, ast.Name) and each.id == name
                for target in node.targets
                for each in ast.walk(target)
            )
        ]
        newest = max(made, key=lambda node: node.lineno, default=None)
        return None if newest is None else (newest.lineno, source(newest))

    def name_of_module(self, module: nn.Module) -> str:
        """Write "`blocks.2.fc`", or "the model" for a root without a name."""
        name = self.module_names.get(id(module), "")
        return f"`{name}`" if name else f"the model ({type(module).__name__})"

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of all modules that are seen, by name."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for root, prefix in self._roots():
            for name, parameter in root.named_parameters():
                found.setdefault(id(parameter), (f"{prefix}{'.' if prefix else ''}{name}", parameter))
        return dict(found.values())

    @cached_property
    def optimizers(self) -> list[tuple[str, Optimizer]]:
        """Optimizers by the names of the script's variables; those that have none come last."""
        found: dict[int, tuple[str, Optimizer]] = {}
        for place in reversed(self.own):
            for name, value in self._seen(place):
                if isinstance(value, Optimizer):
                    found.setdefault(id(value), (name, value))
        for optimizer in self._optimizers:
            found.setdefault(id(optimizer), ("", optimizer))
        return list(found.values())

    def tensor_names(self, wanted: Tensor) -> str:
        """Write the name of a variable that holds a tensor; "" where none does."""
        for place in reversed(self.own):
            for name, value in self._seen(place):
                if value is wanted:
                    return name
        return ""

    def _roots(self) -> Iterator[tuple[nn.Module, str]]:
        if self.model is not None and len(self._several_roots()) < 2:
            yield self.model, ""
        for name, value in self._several_roots():
            yield value, name

    def _several_roots(self) -> list[tuple[str, nn.Module]]:
        found: dict[int, tuple[str, nn.Module]] = {}
        for place in reversed(self.own):
            for name, value in self._seen(place):
                if isinstance(value, nn.Module):
                    found.setdefault(id(value), (name, value))
        roots = [each for each in found.values() if any(True for _ in each[1].parameters())]
        inner = {id(module) for _, root in roots for module in root.modules() if module is not root}
        return [(name, root) for name, root in roots if id(root) not in inner]

    def _seen(self, place: Place) -> Iterator[tuple[str, Any]]:
        held = function_variables(place.frame)
        yield from held.items()
        owner = held.get("self")
        if owner is not None and not isinstance(owner, nn.Module):
            yield from (
                ((f"self.{name}", value) for name, value in dict(vars(owner)).items())
                if hasattr(owner, "__dict__")
                else ()
            )
        if place.frame.f_code.co_name != "<module>":
            yield from list(place.frame.f_globals.items())


def _places(trace: TracebackType | None) -> Iterator[Place]:
    while trace is not None:
        yield Place(trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
        trace = trace.tb_next


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute that is kept in an object itself, without running any code of its class."""
    if isinstance(owner, Tensor):
        return owner.grad if name == "grad" and owner.is_leaf else None
    held = getattr(owner, "__dict__", None)
    if type(held) is not dict:
        return None
    tables = registries(held) if isinstance(owner, nn.Module) else ()
    for table in (held, *tables):
        if isinstance(table, dict) and name in table:
            return table[name]
    return None


def arguments_of(expression: ast.expr | None) -> list[ast.expr]:
    """Return the arguments of a call; of lists and tuples their elements, of `a.f(b)` also `a`."""
    if not isinstance(expression, ast.Call):
        return []
    receiver = [expression.func.value] if isinstance(expression.func, ast.Attribute) else []
    given = [*expression.args, *(keyword.value for keyword in expression.keywords)]
    inner = [each for node in given if isinstance(node, ast.List | ast.Tuple) for each in node.elts]
    return [*receiver, *given, *inner]


def shape_text(value: Tensor) -> str:
    """Write "(32, 10)"."""
    return str(tuple(value.shape))


def dtype_text(dtype: torch.dtype) -> str:
    """Write "float32"."""
    return str(dtype).removeprefix("torch.")


def source(node: ast.AST) -> str:
    """Write an expression or statement in one line, cut where it is long."""
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def names_in(node: ast.AST) -> list[str]:
    """Names that an expression reads."""
    return [
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    ]


def tensors_in(value: Any, depth: int = 0) -> list[Tensor]:
    """Return the tensors of a value: itself, or those in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    if depth < _MOST_DEPTH and type(value) in (list, tuple, dict):
        items = list(value.values()) if type(value) is dict else list(value)
        return [each for item in items[:_MOST_ITEMS] for each in tensors_in(item, depth + 1)]
    return []
