"""In which part of a training an exception was raised that left no forward of the model's, and by which op.

By the files and names in the traceback, and by the statement of the script: it runs nothing.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator
from types import FrameType, ModuleType, TracebackType
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..memory.reachable import function_variables
from ..threads.whereabouts import is_installed
from ..wire import Origin
from .failure_place import OPERATORS, operation_at

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 - compared with code's file names
LOSS: Final = "the loss"
_OUTSIDE: Final = "outside the model"
_LOADER: Final = "the data loader"
_WORKER: Final = " in DataLoader worker process "
_PARTS: Final = (
    (os.path.join("utils", "data", ""), _LOADER),  # noqa: PTH118 - likewise
    (os.path.join("optim", "lr_scheduler.py"), "the learning rate's scheduler"),  # noqa: PTH118
    (os.path.join("nn", "utils", "clip_grad.py"), "gradient clipping"),  # noqa: PTH118
    (os.path.join("nn", "modules", "loss.py"), LOSS),  # noqa: PTH118
    (os.path.join("autograd", "graph.py"), "the backward pass"),  # noqa: PTH118
)
"""By the beginning of a file's name inside of torch's folder."""
_OF_OTHERS: Final = frozenset({*dir(str), *dir(list), *dir(dict), *dir(set)})
"""Methods that need not be a tensor's."""
_LOSS_WORDS: Final = ("loss", "criterion", "cross_entropy", "kl_div")


def failed_part(error: BaseException, trace: TracebackType | None) -> str:
    """Return "Raised in the loss, by F.cross_entropy"; of an exception that left no forward of the model.

    Args:
        error: the exception.
        trace: its traceback.
    """
    part, op = _part_and_op(error, trace)
    place = part if part == _OUTSIDE else f"in {part}"
    return f"Raised {place}, by {op}" if op else f"Raised {place}"


def failed_loss(error: BaseException, trace: TracebackType | None) -> Origin | None:
    """Return the op of a loss that has raised an exception; None where it was no loss, or no op of torch."""
    part, op = _part_and_op(error, trace)
    return Origin(phase="loss", op=op, module=None) if part == LOSS and op else None


def _part_and_op(error: BaseException, trace: TracebackType | None) -> tuple[str, str]:
    frames = list(_frames(trace))
    own = [number for number, (frame, _) in enumerate(frames) if not is_installed(frame.f_code.co_filename)]
    part, op = _OUTSIDE, ""
    for number, (frame, offset) in enumerate(frames):
        found = _part_of(frame, offset)
        if found:
            # What was called for it is no op: `loss.backward`, `optimizer.step`.
            part, op = found, op if found == LOSS else ""
        called = operation_at(frame.f_code, offset)
        is_op = _is_op(called, frame)
        if number in own:
            op = called if is_op else ""
        elif is_op and (part not in (LOSS, _OUTSIDE) or not op):
            op = called
    if part == _OUTSIDE and own and any(map(_names_a_loss, _assigned_at(*frames[own[-1]]))):
        part = LOSS
    return (_LOADER, "") if _WORKER in str(error) else (part, op)


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lasti
        trace = trace.tb_next


def _part_of(frame: FrameType, offset: int) -> str:
    """Which part begins with a frame; "" where it goes on with that of its caller."""
    code = frame.f_code
    if code.co_filename.startswith(_TORCH):
        inner = code.co_filename.removeprefix(_TORCH)
        known = next((part for start, part in _PARTS if inner.startswith(start)), "")
        if known:
            return known
    owner = function_variables(frame).get(code.co_varnames[0]) if code.co_argcount else None
    if code.co_name == "step" and isinstance(owner, Optimizer):
        return "optimizer.step"
    if is_installed(code.co_filename):
        return ""
    if code.co_name == "forward" and isinstance(owner, nn.Module) and not _names_a_loss(type(owner).__name__):
        return f"the forward of {type(owner).__name__}, which is not part of the watched model"
    called = operation_at(code, offset)
    is_loss = _names_a_loss(code.co_name) or _names_a_loss(called)
    return LOSS if is_loss else ""


def _names_a_loss(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return any(word in last for word in _LOSS_WORDS)


def _assigned_at(frame: FrameType, offset: int) -> list[str]:
    """The names that the statement of an instruction assigns: `loss` of `loss = (out * w).mean()`."""
    lines = list(frame.f_code.co_positions())
    number = lines[offset // 2][0] if offset // 2 < len(lines) else None
    text = "" if number is None else linecache.getline(frame.f_code.co_filename, number).strip()
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return []
    if isinstance(statement, ast.AugAssign | ast.AnnAssign):
        return [ast.unparse(statement.target)]
    return [ast.unparse(one) for one in statement.targets] if isinstance(statement, ast.Assign) else []


def _is_op(called: str, frame: FrameType) -> bool:
    """Whether it is an op of torch's: an operator, `torch.cat`, `F.mse_loss`, or a method of a tensor."""
    if called in OPERATORS.values() or called == "assert":
        return True
    owner, _, name = called.rpartition(".")
    held = function_variables(frame).get(
        owner.partition(".")[0], frame.f_globals.get(owner.partition(".")[0])
    )
    if owner and held is not None:
        is_torch = isinstance(held, ModuleType) and held.__name__.startswith("torch")
        return is_torch or isinstance(held, Tensor)
    return name != "backward" and name not in _OF_OTHERS and hasattr(Tensor, name)
