"""Whether a tensor without a graph is the result of another model's forward. Asked when an input was bad.

`critic(fake.detach())` gives the critic what looks like data. As long as the script holds `fake`, it is
known to be none. Reads the variables of the running functions, runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from torch import Tensor

from ..compat import torch_memory
from ..threads.whereabouts import is_installed

_MOST_FRAMES: Final = 64
_MOST_VALUES: Final = 2000


def is_computed_elsewhere(tensor: Tensor) -> bool:
    """Whether a variable of the script, or an attribute of its `self`, has this memory and a graph."""
    key = torch_memory.storage_key(tensor)
    return bool(key) and any(
        value.requires_grad and not value.is_leaf and torch_memory.storage_key(value) == key
        for value in _held_by(sys._getframe(1))
    )


def _held_by(frame: FrameType | None) -> Iterator[Tensor]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if not is_installed(frame.f_code.co_filename):
            yield from _tensors(frame.f_locals)
            code = frame.f_code
            own = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            yield from _tensors(getattr(own, "__dict__", None))
        frame = frame.f_back


def _tensors(variables: Any) -> Iterator[Tensor]:
    held = list(variables.values())[:_MOST_VALUES] if hasattr(variables, "values") else []
    return (value for value in held if type(value) is Tensor)
