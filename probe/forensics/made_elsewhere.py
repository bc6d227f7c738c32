"""Whether a tensor without a graph is the result of another model's forward. Asked when an input was bad.

`critic(fake.detach())` gives the critic what looks like data. As long as the script holds `fake`, it is
known to be none. Reads the variables of the running functions, runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FrameType
from typing import Any, Final

from torch import Tensor

from ..compat import all_objects, torch_memory
from ..errors import ReplayError
from ..threads.frame_variables import hides_variables, variables_of
from ..threads.whereabouts import is_installed

_MOST_FRAMES: Final = 64
_MOST_VALUES: Final = 2000


def is_computed_elsewhere(tensor: Tensor) -> bool:
    """Whether a variable of the script, or an attribute of its `self`, has this memory and a graph.

    Raises:
        ReplayError: that would have to be looked for among all objects, which costs too much now.
    """
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
            yield from _held_by_one(frame)
        frame = frame.f_back


def _held_by_one(frame: FrameType) -> list[Tensor]:
    code = frame.f_code
    if hides_variables(frame):
        # Any tensor may be its variable.
        tensors = all_objects.faults.instances(Tensor)
        if tensors is None:
            raise ReplayError(all_objects.TOO_OFTEN)
        return [value for value in tensors if type(value) is Tensor]
    with variables_of(frame) as variables:
        own = variables.get(code.co_varnames[0]) if code.co_argcount else None
        attributes = getattr(own, "__dict__", None)
        own_values = attributes.values() if isinstance(attributes, dict) else ()
        return [*_tensors(variables.values()), *_tensors(own_values)]


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [value for value in islice(values, _MOST_VALUES) if type(value) is Tensor]
