"""Looks at the variables of a running function of the script, and leaves no trace of it. Any thread."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final

_LIBRARY: Final = ("site-packages", "dist-packages", "/lib/python")
_OPTIMIZED: Final = 0x1
"""CO_OPTIMIZED: the frame is a function's, and its `f_locals` is a copy."""
_READ_LOCALS: Final = frozenset({"locals", "vars", "dir"})
_RUN_CODE: Final = frozenset({"eval", "exec"})
"""They may read locals too, but as attributes they are others' methods, as in `model.eval()`."""
_KEPT_CODES: Final = 256
_UNSHARED: Final = 4
"""References to a frame's own copy of its variables: the frame's, two of ours, its count's."""


@contextmanager
def variables_of(frame: FrameType) -> Iterator[dict[str, Any]]:
    """The variables of a frame; none where looking at them would change what the function sees."""
    code = frame.f_code
    is_copy = bool(code.co_flags & _OPTIMIZED) and sys.version_info < (3, 13)
    if is_copy and _may_read_locals(code):
        # What the function got from `locals()` is the very dictionary that would be brought up to date here.
        yield {}
        return
    values = frame.f_locals
    try:
        yield values
    finally:
        if is_copy and sys.getrefcount(values) == _UNSHARED:
            # The copy would keep a batch and its graph alive for as long as the function runs.
            values.clear()


def _may_read_locals(code: CodeType) -> bool:
    if not _READ_LOCALS.isdisjoint(code.co_names):
        return True
    return not _RUN_CODE.isdisjoint(code.co_names) and _runs_code(code)


@functools.lru_cache(_KEPT_CODES)
def _runs_code(code: CodeType) -> bool:
    return any(
        instruction.opname == "LOAD_GLOBAL" and instruction.argval in _RUN_CODE
        for instruction in dis.get_instructions(code)
    )


def is_library(frame: FrameType) -> bool:
    """Whether a function is of an installed package, or Python's own."""
    return any(part in frame.f_code.co_filename for part in _LIBRARY)
