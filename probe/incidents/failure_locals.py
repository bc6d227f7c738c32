"""What the functions were working on when an exception left them. Called once, for its event.

Names, types, shapes, and of floats how many are NaN or Inf: nothing of the script's is called, and no text is
shown but the names of variables, and keys of dictionaries that could be such names.
"""

from __future__ import annotations

from types import FrameType, TracebackType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, is_lazy

from ..compat.torch_modes import is_functorch_wrapped, own_operations, without_subclass_code
from ..memory.reachable import function_variables, is_of_user
from ..threads.notebook_cells import shown_name

_MAX_FRAMES: Final = 3
_MAX_NAMES: Final = 12
_MAX_PARTS: Final = 4
_TEXT_LIMIT: Final = 400
_LARGEST: Final = 10**15
_MOST_READ: Final = 2**26
"""Elements of a tensor in which NaN and Inf are counted."""


def describe_locals(trace: TracebackType | None, *, with_values: bool = True) -> list[str]:
    """Return a line for each of the script's innermost functions that holds tensors, innermost first.

    For instance ``In loss_of (train.py:10): out float32 (8, 2), 3 NaN, weights float32 (3,), scale 3``. Of
    code that belongs to no function only tensors and arrays are named.

    Args:
        trace: of the exception.
        with_values: whether elements may be read, which asks the device that holds them.
    """
    frames: list[tuple[FrameType, int]] = []
    while trace is not None:
        if is_of_user(trace.tb_frame):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    lines = [line for frame, number in reversed(frames) if (line := _line(frame, number, with_values))]
    return lines[:_MAX_FRAMES]


def _line(frame: FrameType, number: int, with_values: bool) -> str:
    code = frame.f_code
    values = function_variables(frame)
    is_function = code.co_name != "<module>"
    shown = [
        f"{name} {text}{_bad_elements(value) if with_values else ''}"
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


def _bad_elements(value: Any) -> str:
    """``, 3 NaN and 1 Inf`` of a tensor of floats that holds any; "" of what is large or no plain tensor."""
    if not isinstance(value, Tensor) or type(value) not in (Tensor, Parameter):
        return ""
    if is_lazy(value) or value.is_nested or not value.is_floating_point() or value.numel() > _MOST_READ:
        return ""
    if value.layout is not torch.strided or value.device.type == "meta" or is_functorch_wrapped(value):
        return ""
    with own_operations():
        counts = {"NaN": int(value.isnan().sum()), "Inf": int(value.isinf().sum())}
    return ", " * any(counts.values()) + " and ".join(f"{n:,} {name}" for name, n in counts.items() if n)


def _is_number(value: Any) -> bool:
    """Whether it is one that is shown as it is; Python refuses to spell one of thousands of digits."""
    return type(value) in (bool, float) or (type(value) is int and abs(value) <= _LARGEST)


def _is_name(key: Any) -> bool:
    return (type(key) is int and abs(key) <= _LARGEST) or (type(key) is str and key.isidentifier())
