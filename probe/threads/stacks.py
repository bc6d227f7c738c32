"""Stacks as an event shows them: cheap to take, formatted with their source lines only when one is needed.

Used by the session and by the replay, on the training thread. A raw frame is a code object and an
instruction offset; it keeps no frame and therefore no local variable alive.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Final, NamedTuple, TypeAlias

import torch

from ..compat.torch_frames import CALL_PLUMBING
from ..wire import StackFrame
from .source_lines import CONTEXT_LINES as CONTEXT_LINES
from .source_lines import stack_frame

RawFrame: TypeAlias = tuple[CodeType, int]


class Spot(NamedTuple):
    """Where in its file a piece of source begins."""

    line: int
    column: int | None
    """In bytes of UTF-8, from 0, as `ast` counts; None where Python keeps none (`-X no_debug_ranges`)."""


_MAX_FRAMES: Final = 256
_BOOTSTRAP: Final = 3
"""Frames of `threading` that are outermost in a thread: `_bootstrap`, `_bootstrap_inner`, `run`."""


def _folder_of(module_file: str, *, up: int) -> tuple[str, ...]:
    """A package's folder as its code objects name it, and with links followed: a venv may lie behind one."""
    folders = (Path(module_file).parents[up], Path(module_file).resolve().parents[up])
    return tuple(dict.fromkeys(str(folder) + os.sep for folder in folders))


_OWN: Final = _folder_of(__file__, up=1)
_TORCH: Final = _folder_of(torch.__file__, up=0)
_MODULE_FILE: Final = os.path.join("torch", "nn", "modules", "module.py")  # noqa: PTH118 - a suffix, no path


def capture_stack(*, skip_own: bool = True, limit: int = 64) -> list[StackFrame]:
    """Return the stack of the calling thread, outermost frame first, with source lines.

    Args:
        skip_own: leave out the probe's frames and torch's own frames at the inner end (the optimizer and
            autograd functions that called the probe), so that the last frame is the user's line.
        limit: at most this many frames; the innermost ones stay.
    """
    raw = raw_stack(sys._getframe(1), limit=_MAX_FRAMES)
    return (
        format_loop_stack(raw, limit=limit) if skip_own else format_frames(raw, limit=limit, skip_own=False)
    )


def format_loop_stack(raw: Sequence[RawFrame], *, limit: int = 64) -> list[StackFrame]:
    """Format what `raw_stack` took inside the probe, as `capture_stack` would have there.

    The stack of a thread of the probe's own leads to no line of a training: it gives no frames.
    """
    if is_own_thread(raw):
        return []
    return format_frames(inner_torch_removed(list(raw)), limit=limit, skip_own=True)


def raw_stack(
    frame: FrameType | None, *, limit: int, stop: frozenset[CodeType] = frozenset()
) -> list[RawFrame]:
    """Return the frames from `frame` outwards, outermost first, without formatting anything.

    Args:
        frame: the innermost frame wanted.
        limit: at most this many frames; the innermost ones stay.
        stop: a frame of these code objects and everything outside of it are left out.
    """
    frames: list[RawFrame] = []
    while frame is not None and len(frames) < limit and frame.f_code not in stop:
        frames.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    frames.reverse()
    return frames


def is_own_thread(raw: Sequence[RawFrame]) -> bool:
    """Whether a stack, outermost frame first, is that of a thread which the probe has started."""
    files = [code.co_filename for code, _ in raw[: _BOOTSTRAP + 1]]
    of_python = next((number for number, file in enumerate(files) if file != threading.__file__), 0)
    return of_python > 0 and files[of_python].startswith(_OWN)


def stack_from_traceback(traceback: TracebackType | None, *, limit: int = 64) -> list[StackFrame]:
    """Return the frames of an exception, outermost first; the innermost `limit` of them, ours left out."""
    frames: list[RawFrame] = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lasti))
        traceback = traceback.tb_next
    return format_frames(frames, limit=limit)


def inner_torch_removed(raw: list[RawFrame]) -> list[RawFrame]:
    """Drop the probe's and torch's frames at the inner end; everything stays where nothing else is left."""
    end = len(raw)
    while end and raw[end - 1][0].co_filename.startswith(_OWN + _TORCH):
        end -= 1
    return raw[:end] or raw


def inner_own_removed(raw: list[RawFrame]) -> list[RawFrame]:
    """Drop the probe's frames at the inner end."""
    end = len(raw)
    while end and raw[end - 1][0].co_filename.startswith(_OWN):
        end -= 1
    return raw[:end]


def outer_torch_removed(raw: list[RawFrame]) -> list[RawFrame]:
    """Drop torch's frames at the outer end: the engine that calls a backward function."""
    start = 0
    while start < len(raw) and raw[start][0].co_filename.startswith(_TORCH):
        start += 1
    return raw[start:]


def format_frames(raw: Iterable[RawFrame], *, limit: int = 64, skip_own: bool = True) -> list[StackFrame]:
    """Turn raw frames into wire frames; the probe's frames and torch's call plumbing are left out."""
    kept = [frame for frame in raw if not (skip_own and _is_noise(frame[0]))]
    return [_format(code, offset) for code, offset in kept[-min(limit, _MAX_FRAMES) :]]


def _is_noise(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith(_OWN) or (file.endswith(_MODULE_FILE) and code.co_name in CALL_PLUMBING)


def _format(code: CodeType, offset: int) -> StackFrame:
    return stack_frame(code.co_filename, line_of(code, offset), code.co_qualname)


def line_of(code: CodeType, offset: int) -> int:
    """Line of an instruction; that of the function's head for instructions without one."""
    line = None
    for start, end, number in code.co_lines():
        if start <= offset < end:
            line = number
            break
    return code.co_firstlineno if line is None else line


def spot_of(code: CodeType, offset: int) -> Spot:
    """Where the expression of an instruction begins: a line may hold several statements."""
    # An instruction is two bytes.
    line, _, column, _ = next(islice(code.co_positions(), offset // 2, None), (None, None, None, None))
    return Spot(line_of(code, offset), column if line is not None else None)


class CodePlace(NamedTuple):
    """A place in the source that a part of it, compiled by itself, has too."""

    file: str
    function: str
    """Qualified name."""
    spot: Spot


def place_in_code(frame: RawFrame) -> CodePlace:
    """Where a frame stands, whichever code object it runs."""
    code, offset = frame
    return CodePlace(code.co_filename, code.co_qualname, spot_of(code, offset))
