"""In which collective a thread is, by the frames of its stack or of an exception. Runs no collective.

Used by the recorder's thread for one that waits, and on the training thread for one that has raised.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from torch import Tensor

from ..compat import torch_ranks
from ..compat.other_ranks import has_other_ranks
from ..wire.collective_waits import CollectiveWait
from .frame_variables import variables_of
from .notebook_cells import shown_name
from .whereabouts import is_installed

_DISTRIBUTED: Final = (
    os.path.join("torch", "distributed", ""),  # noqa: PTH118 - parts of a file's name
    os.path.join("torch", "nn", "parallel", "distributed.py"),  # noqa: PTH118
)
BACKWARD: Final = "backward"
"""What a wait is called that a backward contains, where gradients are averaged."""
_BACKWARD_FILE: Final = os.path.join("torch", "autograd", "graph.py")  # noqa: PTH118
_WRAPPER: Final = "c10d_logger.py"
"""Its functions stand around torch's collectives, and have none of their variables."""
_GIVEN: Final = ("tensor", "tensors", "input_tensor", "input", "tensor_list", "input_tensor_list", "output")
"""Arguments of torch's collectives that are sent."""
_MOST_FRAMES: Final = 256


class _Place(NamedTuple):
    frame: FrameType
    line: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename


def wait_of_thread(frame: FrameType) -> CollectiveWait | None:
    """Return the collective that a thread is in just now; None outside of any.

    Args:
        frame: the innermost of the thread, which may go on meanwhile.
    """
    found: list[_Place] = []
    outer: FrameType | None = frame
    while outer is not None and len(found) < _MOST_FRAMES:
        found.append(_Place(outer, outer.f_lineno))
        outer = outer.f_back
    return _wait_in(found[::-1])


def wait_of_traceback(trace: TracebackType | None) -> CollectiveWait | None:
    """Return the collective that raised an exception; None where another call has."""
    return _wait_in([*_places(trace)])


def _places(trace: TracebackType | None) -> Iterator[_Place]:
    while trace is not None:
        yield _Place(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next


def _wait_in(stack: Sequence[_Place]) -> CollectiveWait | None:
    """Judge a stack, outermost first, by torch's frames at its inner end."""
    if not stack or not has_other_ranks():
        return None
    own = next((n for n in reversed(range(len(stack))) if not is_installed(stack[n].file)), -1)
    if own < 0:
        return None
    place, inner = stack[own], stack[own + 1 :]
    where = f"{shown_name(place.file)}:{place.line}"
    called = [one for one in inner if any(part in one.file for part in _DISTRIBUTED)]
    called = [one for one in called if not one.file.endswith(_WRAPPER)]
    if called:
        with variables_of(called[0].frame) as values:
            return _made(called[0].frame.f_code.co_name, where, values)
    if inner and inner[-1].file.endswith(_BACKWARD_FILE):
        return _made(BACKWARD, where, {})
    if not inner and ".wait(" in linecache.getline(place.file, place.line):
        return _made("wait", where, {})
    return None


def _made(op: str, where: str, values: Mapping[str, Any]) -> CollectiveWait:
    group = values.get("group")
    given = next((value for name in _GIVEN if (value := values.get(name)) is not None), None)
    return CollectiveWait(
        op=op,
        number=torch_ranks.collectives_begun(group),
        group=torch_ranks.own_name(group),
        tensor=_described(given),
        place=where,
    )


def _described(given: Any) -> str:
    if isinstance(given, list | tuple):
        kinds = [_described(one) for one in given[:64]]
        return f"{len(given)} tensors, {kinds[0]}" if kinds and kinds[0] else ""
    if not isinstance(given, Tensor):
        return ""
    return f"{str(given.dtype).removeprefix('torch.')} of shape {tuple(given.shape)}"
