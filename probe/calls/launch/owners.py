"""Which module holds an optimizer's parameters, and what the script calls it. Called once per optimizer.

In Lightning a `Sequential` inside is called, but names
must come from the `LightningModule` that has it inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...attach.call_wrappers import is_own_frame
from ...compat import all_objects
from ...compat.torch_modules import own_modules
from ...threads.frame_variables import is_library, variables_of


def parameters_of(optimizer: Optimizer | None) -> list[Tensor]:
    """What an optimizer updates; empty while it is being constructed, and once it is gone."""
    groups = getattr(optimizer, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def find_holders(
    trained: Iterable[Iterable[Tensor]],
    frame: FrameType | None,
    called: nn.Module | None = None,
    known: Sequence[nn.Module] = (),
    is_awaited: Callable[[nn.Module], bool] | None = None,
) -> list[nn.Module]:
    """Return the topmost modules that hold parameters which are trained together, as few as possible.

    Looks at all objects, which takes 40 to 90 ms; where that would cost too much now, or finds nothing, as
    after `gc.freeze()`, at what the running functions have at hand.

    Args:
        trained: parameters of each optimizer.
        frame: the innermost one of the script.
        called: what the script calls, if that is known.
        known: models found before; where they hold all of it, nothing is looked for.
        is_awaited: whether a model is made again here; where what is at hand holds all of it and is such a
            model, nothing else is looked for.
    """
    wanted = [list(parameters) for parameters in trained]
    if _hold_all(known, wanted):
        return _topmost(wanted, known)
    if is_awaited is not None:
        at_hand = _topmost(wanted, list(_modules_at_hand(frame, called)))
        if all(map(is_awaited, at_hand)) and _hold_all(at_hand, wanted):
            return at_hand
    holders = _topmost(wanted, all_objects.training.instances(nn.Module) or ())
    return holders or _topmost(wanted, list(_modules_at_hand(frame, called)))


def _hold_all(models: Sequence[nn.Module], wanted: Iterable[Iterable[Tensor]]) -> bool:
    held = {id(parameter) for model in models for parameter in model.parameters()}
    return bool(held) and all(id(parameter) in held for parameters in wanted for parameter in parameters)


def _topmost(trained: Iterable[Iterable[Tensor]], modules: Sequence[nn.Module]) -> list[nn.Module]:
    inner = {id(child) for module in modules for child in own_modules(module).values()}
    tops = [module for module in modules if id(module) not in inner]
    owned = [(top, frozenset(map(id, top.parameters()))) for top in tops]
    owned = [(top, ids) for top, ids in owned if ids]
    found: dict[int, nn.Module] = {}
    for parameters in trained:
        wanted = set(map(id, parameters))
        # Of two that hold as many, the one with fewer others is the model, and not a collection of models.
        for top, ids in sorted(owned, key=lambda pair: (-len(wanted & pair[1]), len(pair[1]))):
            if wanted & ids:
                found[id(top)] = top
                wanted -= ids
    return list(found.values())


def _modules_at_hand(frame: FrameType | None, called: nn.Module | None) -> Iterator[nn.Module]:
    """Return what is called, and what variables of the running functions and of their `self` hold."""
    found = {} if called is None else {id(called): called}
    for item in _frames(frame):
        with variables_of(item) as values:
            held = [*values.values(), *_attributes_of(values.get(_own_name(item, values))).values()]
        for value in [*held, *(() if is_library(item) else list(item.f_globals.values()))]:
            if issubclass(type(value), nn.Module):
                found[id(value)] = value
    yield from dict.fromkeys(part for top in found.values() for part in top.modules())


def trained_part(
    holder: nn.Module, called: nn.Module, optimizers: Iterable[Optimizer], frame: FrameType | None
) -> nn.Module:
    """Return what is trained of a holder that only keeps it beside copies of it, as moving averages are.

    A holder that is called itself, or one of whose methods calls, is the model.

    Args:
        holder: holds parameters of the optimizers.
        called: what the script calls.
        optimizers: all that may update the holder.
        frame: the innermost one of the script.
    """
    inside = any(module is called for module in holder.modules()) and called is not holder
    if not inside or _runs_in_method_of(holder, frame):
        return holder
    own = {id(parameter): parameter for parameter in holder.parameters()}
    wanted = own.keys() & {id(one) for optimizer in optimizers for one in parameters_of(optimizer)}
    for part in holder.modules():
        held = set(map(id, part.parameters()))
        if part is holder or not wanted <= held or all(module is not called for module in part.modules()):
            continue
        if _are_copies([own[one].shape for one in own.keys() - held], [own[one].shape for one in held]):
            return trained_part(part, called, optimizers, frame)
    return holder


def _are_copies(others: Sequence[torch.Size], own: Sequence[torch.Size]) -> bool:
    """Whether parameters of these shapes are those of one or more copies of a module."""
    copies, rest = divmod(len(others), len(own))
    return copies > 0 and not rest and Counter(others) == Counter([*own] * copies)


def _runs_in_method_of(module: nn.Module, frame: FrameType | None) -> bool:
    for item in _frames(frame):
        names = item.f_code.co_varnames[: item.f_code.co_argcount]
        with variables_of(item) as values:
            if names and values.get(names[0]) is module:
                return True
    return False


def variable_name(
    modules: Iterable[nn.Module], frame: FrameType | None, *, taken: Container[str] = ()
) -> str | None:
    """Return what a script's frames, innermost first, call one of `modules`: a variable, or `self.<name>`.

    Frames of installed packages come after those of the script. Names that are `taken`, by another
    model which the same function has trained, say, are passed over.
    """
    wanted = list(modules)
    frames = list(_frames(frame))
    own = [item for item in frames if not is_library(item)]
    for item in [*own, *(other for other in frames if other not in own)]:
        for module in wanted:
            name = next((name for name in _names_in(item, module) if name not in taken), None)
            if name is not None:
                return name
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if not is_own_frame(frame):
            yield frame
        frame = frame.f_back


def _attributes_of(value: object) -> dict[str, Any]:
    """Its `__dict__`, without running code of its class; empty where it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _names_in(frame: FrameType, module: nn.Module) -> list[str]:
    with variables_of(frame) as values:
        own = _own_name(frame, values)
        attributes = _attributes_of(values.get(own))
        names = _keys_of(values, module, own) + _keys_of(attributes, module, own)
    return names + _keys_of(frame.f_globals, module, own)


def _own_name(frame: FrameType, values: Any) -> str:
    """What a method calls the object that it is of: `self`, as a rule."""
    code = frame.f_code
    owner, _, _ = code.co_qualname.rpartition(".")
    if code.co_argcount and code.co_varnames[0] in values:
        classes = type(values[code.co_varnames[0]]).__mro__
        if any(each.__qualname__ == owner for each in classes):
            return code.co_varnames[0]
    return "self"


def _keys_of(values: Any, module: nn.Module, own: str) -> list[str]:
    names = [name for name, value in list(values.items()) if value is module and isinstance(name, str)]
    return [name for name in names if name.isidentifier() and name != own]
