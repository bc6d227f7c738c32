"""Looks at the variables of a running function of the script, and leaves no trace of it. Any thread."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final

from ..wire.libraries import is_of_library

_OPTIMIZED: Final = 0x1
"""CO_OPTIMIZED: the frame is a function's, and its `f_locals` is a copy."""
_READERS: Final = frozenset({"locals", "vars", "eval", "exec"})
_NO_CALL: Final = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"})
"""Instructions that may stand between a function's name and its call without arguments."""
_KEPT_CODES: Final = 256
_UNSHARED: Final = 4
"""References to a frame's own copy of its variables: the frame's, two of ours, its count's."""


@contextmanager
def variables_of(frame: FrameType) -> Iterator[dict[str, Any]]:
    """The variables of a frame; none where looking at them would change what the function sees."""
    if hides_variables(frame):
        # What the function got from `locals()` is the very dictionary that would be brought up to date here.
        yield {}
        return
    values = frame.f_locals
    try:
        yield values
    finally:
        if _has_copy(frame) and sys.getrefcount(values) == _UNSHARED:
            # The copy would keep a batch and its graph alive for as long as the function runs.
            values.clear()


def hides_variables(frame: FrameType) -> bool:
    """Whether `variables_of` gives none of a frame's variables, whatever it has."""
    if not _has_copy(frame) or _READERS.isdisjoint(frame.f_code.co_names):
        return False
    # A script may have a function `eval` of its own.
    return any(name not in frame.f_globals for name in _readers_called(frame.f_code))


def _has_copy(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & _OPTIMIZED) and sys.version_info < (3, 13)


@functools.lru_cache(_KEPT_CODES)
def _readers_called(code: CodeType) -> frozenset[str]:
    """Which of Python's own functions a function calls that read or write its variables by name.

    Not as attributes: `model.eval()` is another's; nor `vars(args)`, which reads what it is given.
    """
    whole = [one for one in dis.get_instructions(code) if one.opname not in _NO_CALL]
    found = ((one.argval, following) for one, following in pairwise(whole) if one.opname == "LOAD_GLOBAL")
    return frozenset(
        name for name, following in found if name in _READERS and (name != "vars" or _is_bare(following))
    )


def _is_bare(following: dis.Instruction) -> bool:
    return following.opname == "CALL" and following.arg == 0


def is_library(frame: FrameType) -> bool:
    """Whether a function is Python's own or a known library's; any other package may be what trains."""
    return is_of_library(frame.f_code.co_filename)
