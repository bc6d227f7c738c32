"""Keeps the probe's frames out of the tracebacks of a script that knows nothing of it."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from ...attach.call_wrappers import is_own_frame


def hide_own_frames_of_uncaught() -> None:
    """Have uncaught exceptions show the script's frames and those of its libraries, none of the probe's."""
    previous, previous_of_threads = sys.excepthook, threading.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _clean(error, set())
        previous(kind, error, error.__traceback__)

    def excepthook_of_threads(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if error is not None:
            _clean(error, set())
            args = threading.ExceptHookArgs((args.exc_type, error, error.__traceback__, args.thread))
        previous_of_threads(args)

    sys.excepthook, threading.excepthook = excepthook, excepthook_of_threads


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
