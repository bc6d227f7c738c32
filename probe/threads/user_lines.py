"""Which line of a stack is the script's own, and how it is written in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..wire import StackFrame
from .whereabouts import is_installed, is_library


def user_line(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the script's innermost frame; None without frames.

    Where all is installed, that of a package which is no known library: a program that was installed.
    """
    own = [frame for frame in frames if not is_installed(frame.file) and "/torch/" not in frame.file]
    return own[-1] if own else op_line(frames)


def op_line(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame that is of no known library: an installed loss has a line, too."""
    own = [frame for frame in frames if not is_library(frame.file) and "/torch/" not in frame.file]
    return own[-1] if own else (frames[-1] if frames else None)


def at_line(frames: Sequence[StackFrame]) -> str:
    """Write ", train.py:26"; nothing without frames."""
    return _written(user_line(frames))


def at_op_line(frames: Sequence[StackFrame]) -> str:
    """Write ", losses.py:12", the line that ran the operation; nothing without frames."""
    return _written(op_line(frames))


def _written(line: StackFrame | None) -> str:
    return "" if line is None else f", {Path(line.file).name}:{line.line}"
