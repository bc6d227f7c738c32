"""Which line of a stack is the script's own, and how it is written in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..wire import StackFrame
from .whereabouts import is_installed


def user_line(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame that is not inside Python or an installed package; None without frames."""
    foreign = ("site-packages", "/torch/")
    own = [f for f in frames if not is_installed(f.file) and not any(part in f.file for part in foreign)]
    return own[-1] if own else (frames[-1] if frames else None)


def at_line(frames: Sequence[StackFrame]) -> str:
    """Write ", train.py:26"; nothing without frames."""
    line = user_line(frames)
    return "" if line is None else f", {Path(line.file).name}:{line.line}"
