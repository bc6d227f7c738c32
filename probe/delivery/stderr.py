"""The one function that writes to stderr. Light: `dashboard run` has it before the script begins."""

from __future__ import annotations

import sys
from typing import TextIO

from ..guard import suppressed
from .visible_text import visible_text

_real_stderr: list[bool] = []


def speak_to_real_stderr() -> None:
    """Have lines go to the process's own stderr, wherever the script sends its own (`dashboard run`)."""
    _real_stderr[:] = [True]


def say(line: str) -> None:
    """Write one line to stderr."""
    stream: TextIO | None = sys.__stderr__ if _real_stderr else sys.stderr
    # A terminal that has gone is no reason to disturb the script.
    with suppressed(OSError, ValueError, AttributeError):
        if stream is not None:
            stream.write(f"nanscope: {visible_text(line)}\n")
            stream.flush()
