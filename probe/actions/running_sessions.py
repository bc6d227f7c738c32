"""Which sessions run just now, for calls that name none: regions and events of the script's own.

`session.Probe` enters itself here and leaves. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Protocol

from ..wire import Severity


class EventSink(Protocol):
    """What takes events of the script's own; a session is one."""

    def record_event(self, message: str, /, *, severity: str = "info", **data: Any) -> None:
        """Record an event."""
        ...

    def track_error(
        self,
        error: BaseException,
        *,
        severity: str = "warning",
        category: Any = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an exception that the script has caught."""
        ...

    def note_error(
        self,
        error: BaseException,
        trace: TracebackType | None,
        *,
        severity: Severity = "warning",
        data: Mapping[str, Any],
    ) -> None:
        """Record an exception that may be caught further out."""
        ...


_sinks: Final[list[EventSink]] = []
"""The newest last."""


def enter(sink: EventSink) -> None:
    """Say that a session has begun to record."""
    _sinks.append(sink)


def leave(sink: EventSink) -> None:
    """Say that it has ended; idempotent."""
    if sink in _sinks:
        _sinks.remove(sink)


def newest() -> EventSink | None:
    """Return the session that began last; None where none is running."""
    sinks = list(_sinks)
    return sinks[-1] if sinks else None
