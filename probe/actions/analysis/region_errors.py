"""The event of an exception that leaves a region, whether or not the script catches it further out."""

from __future__ import annotations

from types import TracebackType

from ...incidents.seen_errors import marks_of
from ..running_sessions import EventSink, newest


def note_region_error(
    error: BaseException | None, trace: TracebackType | None, path: str, sink: EventSink | None
) -> None:
    """Have a session record it, with the region's path; once, by the innermost region.

    Args:
        error: what leaves the region, if anything does; a Ctrl-C and the end of an iteration are no faults.
        trace: its traceback.
        path: of the region.
        sink: the session; None is the newest one that is running.
    """
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return
    sink = newest() if sink is None else sink
    if sink is not None and not marks_of(error):
        sink.note_error(error, trace, data={"region": path})
