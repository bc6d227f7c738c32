"""The lines of the script that made a loss: what they read goes into a bundle, they themselves do not.

On the other machine the same lines are looked for in the script that is there, the user's own, among the
modules that building the model has imported. Lines that differ are not run, nor are those of installed
packages, and no text of a bundle ever is.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from torch import nn

from ...compat.torch_modules import own_buffers
from ...errors import BundleError, ReplayError
from ...threads.stacks import Spot
from ...threads.whereabouts import is_installed
from ..capture import RootCapture
from ..loss.call_arguments import variables_of
from ..loss.code_source import function_called
from ..loss.loss_code import LossCode, LossPlace, LossSpots, cut_loss_code, find_loss_place
from .schema import LossMaker
from .values import Decoder, Encoder

_IMPORTED: Final = (ModuleType, FunctionType, BuiltinFunctionType, type)
_TORCH_LOSSES: Final = "torch.nn.modules.loss"
_OWN: Final = "loss module"


def describe_loss(captures: Sequence[RootCapture], frame: FrameType | None, encoder: Encoder) -> LossMaker:
    """Describe the lines that made the loss of a step, with the values that they read.

    Args:
        captures: of the step, the newest backward last.
        frame: of the present call, inside the function that called backward.
        encoder: of the values.

    Raises:
        BundleError: the lines cannot be told, or read what a bundle cannot hold.
    """
    newest = [capture for capture in captures if capture.passes][-1:]
    if not newest:
        raise BundleError("no backward was seen")
    task = {back.task for back in newest[0].passes}
    same = [capture for capture in captures if task & {back.task for back in capture.passes}]
    try:
        place = find_loss_place(same[0].call_site, same[-1].backward_site, frame)
        code = cut_loss_code(place.code, place.spots, variables_of(place.frame))
    except ReplayError as error:
        raise BundleError(str(error)) from error
    values, outside = _values(code, place, encoder)
    spots = place.spots.moved(-place.code.co_firstlineno)
    return LossMaker(
        file=Path(place.code.co_filename).name,
        function=place.code.co_qualname,
        lines=(spots.forward.line, spots.backward.line, spots.now.line),
        columns=(spots.forward.column, spots.backward.column, spots.now.column),
        text=code.text,
        values=values,
        outside=outside,
    )


def _values(code: LossCode, place: LossPlace, encoder: Encoder) -> tuple[list[tuple[str, Any]], list[str]]:
    values: list[tuple[str, Any]] = []
    outside: list[str] = []
    for name in sorted(code.names):
        value = code.namespace[name]
        is_global = place.frame.f_globals.get(name) is value
        if isinstance(value, _IMPORTED) and is_global:
            outside.append(name)
            continue
        try:
            values.append((name, _encoded(value, name, encoder)))
        except BundleError:
            if not is_global:
                raise
            outside.append(name)
    return values, outside


def _encoded(value: Any, name: str, encoder: Encoder) -> Any:
    """Encode a value of the script; of torch's own loss modules, what they are made of."""
    try:
        return encoder.encode(value, name)
    except BundleError:
        if not (isinstance(value, nn.Module) and type(value).__module__ == _TORCH_LOSSES):
            raise
    numbers = {key: item for key, item in vars(value).items() if not key.startswith("_")}
    return {_OWN: [type(value).__name__, encoder.encode((numbers, dict(own_buffers(value))), name)]}


def loss_code_of(maker: LossMaker, decoder: Decoder) -> LossCode:
    """Find the lines in a script that is loaded here.

    Args:
        maker: the description.
        decoder: of the values, which also knows the model's parts by name.

    Raises:
        BundleError: they are not there, or are others.
    """
    module, place = _find(maker)
    values = {name: _decoded(value, decoder) for name, value in maker.values}
    if missing := [name for name in maker.outside if name not in vars(module)]:
        raise BundleError(f"{module.__name__} has no {missing[0]} here, which the lines of the loss read")
    try:
        code = cut_loss_code(*place, {**vars(module), **values})
    except ReplayError as error:
        raise BundleError(f"the lines of the loss: {error}") from error
    if code.text != maker.text:
        raise BundleError(f"the lines of the loss in {maker.file} are not those of the run")
    return code


def _find(maker: LossMaker) -> tuple[ModuleType, tuple[Any, LossSpots]]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or Path(file).name != maker.file or is_installed(file):
            continue
        source = "".join(linecache.getlines(file))
        try:
            found = function_called(maker.function, source, file)
        except ReplayError:
            continue
        if len(found) == 1:
            spots = LossSpots(*map(Spot, maker.lines, maker.columns))
            return module, (found[0], spots.moved(found[0].co_firstlineno))
    raise BundleError(
        f"no script that is loaded here is a {maker.file} with {maker.function}; name it by --entry"
    )


def _decoded(value: Any, decoder: Decoder) -> Any:
    if not (isinstance(value, dict) and set(value) == {_OWN}):
        return decoder.decode(value)
    try:
        name, described = value[_OWN]
        kind: Callable[..., nn.Module] | None = vars(sys.modules[_TORCH_LOSSES]).get(name)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise BundleError(f"torch has no loss {name!r}")
        made: nn.Module = kind.__new__(kind)
        nn.Module.__init__(made)
        numbers, buffers = decoder.decode(described)
        for key, item in buffers.items():
            made.register_buffer(key, item)
        for key, item in numbers.items():
            # Methods and what modules keep for themselves, hooks say, are not a bundle's to set.
            if not (key.startswith("_") or hasattr(kind, key)):
                setattr(made, key, item)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BundleError("a loss module is described in a way that is not understood") from error
    return made
