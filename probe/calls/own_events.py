"""`probe.record_event` and `probe.track_error`: events of the script's own, without a session's handle."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from ..actions.running_sessions import EventSink, newest
from ..incidents.event_data import severity_of
from ..incidents.seen_errors import marks_of
from ..session import running_session, running_sessions
from ..settings.config import is_switched_off

_logger = logging.getLogger(__name__)
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
_told: set[str] = set()


def record_event(
    message: str, /, *, severity: str = "info", model: nn.Module | None = None, **data: Any
) -> None:
    """Put an event of your own on the timeline of a running session; see `Probe.record_event`.

    Without a running session it is only logged, and the first time a warning says so. Raises nothing.

    Args:
        message: what happened.
        severity: "info", "warning" or "critical", or a word of Python's logging.
        model: whose session it belongs to; the session that began last by default.
        **data: what belongs to it.
    """
    if (sink := _session_of(model)) is not None:
        sink.record_event(message, severity=severity, **data)
    else:
        _log("custom", str(message), severity)


def track_error(
    error: BaseException,
    *,
    severity: str = "warning",
    category: Any = None,
    context: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
) -> None:
    """Record an exception that the script catches in a running session; see `Probe.track_error`.

    Without a running session it is only logged, and the first time a warning says so. Raises nothing.

    Args:
        error: what was caught.
        severity: "info", "warning" or "critical", or a word of Python's logging.
        category: any word of yours, or a member of an enum.
        context: values that belong to it.
        model: whose session it belongs to; by default the one that has recorded it already, else the session
            that began last.
    """
    sink = _session_of(model)
    if sink is not None and isinstance(error, BaseException):
        sink = _recorder_of(error) or sink
    if sink is not None:
        sink.track_error(error, severity=severity, category=category, context=context)
    else:
        _log("exception", f"{type(error).__name__}: {error}", severity)


def _session_of(model: nn.Module | None) -> EventSink | None:
    return newest() if model is None else running_session(model)


def _recorder_of(error: BaseException) -> EventSink | None:
    """The running session that has an event of the exception already."""
    marks = marks_of(error)
    return next((session for session in running_sessions() if session.run in marks), None)


def _log(kind: str, text: str, severity: object) -> None:
    first_line = next(iter(text.splitlines()), "")
    _logger.log(_LEVELS[severity_of(severity) or "info"], "%s: %s", kind, first_line)
    if not _told and not is_switched_off(os.environ):
        _told.add(kind)
        _logger.warning(
            "nanscope: no session is running, so that events of the script are only logged; "
            "call probe.watch(model) first, or start the script with `dashboard run`"
        )
