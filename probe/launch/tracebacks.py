"""Keeps the probe's frames out of the tracebacks of a script that knows nothing of it."""

from __future__ import annotations

import sys
from types import TracebackType

from ..call_wrappers import is_own_frame


def hide_own_frames_of_uncaught() -> None:
    """Have uncaught exceptions show the script's frames and those of its libraries, none of the probe's."""
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _clean(error, set())
        previous(kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _clean(error: BaseException | None, seen: set[int]) -> None:
    """Take the probe's frames from an exception, and from those that it came of."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _without_own(error.__traceback__)
    _clean(error.__cause__, seen)
    _clean(error.__context__, seen)
    for inner in getattr(error, "exceptions", ()):
        if isinstance(inner, BaseException):
            _clean(inner, seen)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not is_own_frame(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    return following
