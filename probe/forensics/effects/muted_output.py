"""Drops what one thread prints and logs while it replays: it has said so already in the step."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_muted: Final[set[int]] = set()
"""Threads whose output is dropped."""
_lock: Final = threading.Lock()
_OWN: Final = __name__.partition(".")[0]


class _Stream:
    """Stands in for a stream while a thread replays; what other threads write goes through."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if threading.get_ident() in _muted:
            return len(text)
        return int(self.stream.write(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_handle = logging.Logger.handle


def _handle_of_others(self: logging.Logger, record: logging.LogRecord) -> None:
    """Stands in for `Logger.handle`; what the probe itself has to say is no part of the step."""
    if threading.get_ident() not in _muted or record.name.partition(".")[0] == _OWN:
        _handle(self, record)


def is_output(value: Any) -> bool:
    """Whether it is a stream whose output is dropped, or stands for one."""
    return isinstance(value, _Stream) or value is sys.stdout or value is sys.stderr


@contextmanager
def output_muted() -> Iterator[None]:
    """Drop what this thread writes to `sys.stdout` and `sys.stderr`, and logs, in the block."""
    thread = threading.get_ident()
    if thread in _muted:
        yield
        return
    with _lock:
        if not _muted:
            _stand_in()
        _muted.add(thread)
    try:
        yield
    finally:
        with _lock:
            _muted.discard(thread)
            if not _muted:
                _take_away()


def _stand_in() -> None:
    global _handle
    if logging.Logger.handle is not _handle_of_others:
        _handle = logging.Logger.handle
        setattr(logging.Logger, "handle", _handle_of_others)  # noqa: B010 - mypy refuses the plain form
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Stream):
            setattr(sys, name, _Stream(stream))


def _take_away() -> None:
    if logging.Logger.handle is _handle_of_others:
        setattr(logging.Logger, "handle", _handle)  # noqa: B010
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # What somebody has put there meanwhile stays.
        if isinstance(stream, _Stream):
            setattr(sys, name, stream.stream)
