"""What the functions were working on when an exception left them. Called once, for its event.

Names, types, shapes, and the values' statistics: nothing of the script's is called, and no text is shown but
the names of variables, and keys of dictionaries that could be such names.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, is_lazy

from ..compat.torch_modes import is_functorch_wrapped, own_operations, without_subclass_code
from ..forensics.tensor_facts import facts_of
from ..memory.reachable import function_variables, is_of_user
from ..threads.notebook_cells import shown_name
from ..wire import TensorFacts

_MAX_FRAMES: Final = 3
_MAX_NAMES: Final = 12
_MAX_PARTS: Final = 4
_TEXT_LIMIT: Final = 400
_LARGEST: Final = 10**15
_MAX_TENSORS: Final = 8
"""Of one function that are described."""
_MOST_READ: Final = 2**26
"""Elements of a tensor that are read."""


class Locals(NamedTuple):
    """What the functions held that an exception left, innermost first."""

    lines: list[str]
    """One of each function, such as ``In loss_of (train.py:10): out, weights, scale 3``."""
    tensors: list[TensorFacts]
    """Of the variables that are tensors; of an outer function ``out in step``."""


def describe_locals(trace: TracebackType | None, *, with_values: bool = True) -> Locals:
    """Return what the script's innermost functions held that hold tensors at all.

    A tensor is named in the line of its function, and described beside it. Of code that belongs to no
    function only tensors and arrays are named.

    Args:
        trace: of the exception.
        with_values: whether elements may be read, which asks the device that holds them.
    """
    frames: list[tuple[FrameType, int]] = []
    while trace is not None:
        if is_of_user(trace.tb_frame):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    found = Locals([], [])
    for frame, number in reversed(frames):
        if len(found.lines) == _MAX_FRAMES:
            break
        tensors = _described(frame, with_values, outer=bool(found.lines))
        if line := _line(frame, number, frozenset(tensors)):
            found.lines.append(line)
            found.tensors.extend(tensors.values())
    return found


def _described(frame: FrameType, with_values: bool, *, outer: bool) -> dict[str, TensorFacts]:
    """The variables of a function that are tensors."""
    own = f" in {frame.f_code.co_name}" if outer else ""
    tensors = {name: value for name, value in function_variables(frame).items() if isinstance(value, Tensor)}
    found: dict[str, TensorFacts] = {}
    for name, value in list(tensors.items())[:_MAX_TENSORS]:
        if not is_lazy(value):
            may_read = with_values and _may_read(value)
            with own_operations() if may_read else nullcontext():
                found[name] = facts_of(value, role="local", name=name + own, with_values=may_read)
    return found


def _line(frame: FrameType, number: int, described: frozenset[str]) -> str:
    code = frame.f_code
    values = function_variables(frame)
    is_function = code.co_name != "<module>"
    shown = [
        name if name in described else f"{name} {text}"
        for name, value in values.items()
        if (text := _shape(value))
    ]
    if not shown:
        return ""
    if is_function:
        shown += [f"{name} {value}" for name, value in values.items() if _is_number(value)]
    more = f", and {len(shown) - _MAX_NAMES} more" if len(shown) > _MAX_NAMES else ""
    place = f"{code.co_qualname} " if is_function else ""
    text = f"In {place}({shown_name(code.co_filename)}:{number}): {', '.join(shown[:_MAX_NAMES])}{more}"
    return text if len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}..."


def _shape(value: Any, *, depth: int = 0) -> str:
    """``float32 (8, 2)`` of a tensor or an array, ``[...]`` of a few of them; "" of anything else."""
    if isinstance(value, Tensor):
        with without_subclass_code():
            return _shape_of_tensor(value)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return f"{value.dtype} array {tuple(value.shape)}"
    if kind in (list, tuple) and len(value) > 0 and not depth:
        parts = [_shape(part, depth=1) for part in value[:_MAX_PARTS]]
        more = ", ..." if len(value) > _MAX_PARTS else ""
        return f"[{', '.join(parts)}{more}]" if all(parts) else ""
    if kind is dict and value and not depth:
        items = [(key, _shape(part, depth=1)) for key, part in list(value.items())[:_MAX_PARTS]]
        named = [f"{key}: {text}" for key, text in items if text and _is_name(key)]
        return f"{{{', '.join(named)}}}" if named else ""
    return ""


def _shape_of_tensor(value: Tensor) -> str:
    if is_lazy(value):
        return "not initialised yet"
    device = "" if value.device.type == "cpu" else f" on {value.device}"
    shape = "nested" if value.is_nested else tuple(value.shape)
    return f"{str(value.dtype).removeprefix('torch.')} {shape}{device}"


def _may_read(value: Tensor) -> bool:
    """Whether a tensor's elements may be read: not of a large one, nor of a class of the script's own."""
    if type(value) not in (Tensor, Parameter) or value.is_nested or value.numel() > _MOST_READ:
        return False
    return value.layout is torch.strided and not is_functorch_wrapped(value)


def _is_number(value: Any) -> bool:
    """Whether it is one that is shown as it is; Python refuses to spell one of thousands of digits."""
    return type(value) in (bool, float) or (type(value) is int and abs(value) <= _LARGEST)


def _is_name(key: Any) -> bool:
    return (type(key) is int and abs(key) <= _LARGEST) or (type(key) is str and key.isidentifier())
