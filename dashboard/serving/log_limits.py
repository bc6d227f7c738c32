"""Keeps what strangers can cause from filling the log: the first line of a kind, then one summary a minute.

A filter on the loggers that write about connections. The server adds it at its start, takes it off at its
end, and asks now and then for the summaries that are due. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

LIMITED: Final = ("uvicorn.error", "websockets.server", "dashboard.live.hub", "dashboard.ingest.collector")
"""Loggers with a line for each odd connection."""
INTERVAL_S: Final = 60.0
_MOST_KINDS: Final = 64
"""Kinds that are counted apart; all further ones are one."""
_Kind = tuple[str, int, str]


@dataclass(slots=True)
class _Seen:
    """One kind of line."""

    since: float
    """Of the line that was written last."""
    text: str
    """The newest that was not written."""
    count: int = 0
    """Lines since then."""


class LogLimits(logging.Filter):
    """Writes the first line of each kind, and one line a minute that says how many like it there were.

    A kind is what one place in the code writes, whatever it fills in. A traceback comes with the first.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[_Kind, _Seen] = {}

    def install(self, names: Iterable[str] = LIMITED) -> Callable[[], None]:
        """Filter these loggers; return what ends that."""
        loggers = [logging.getLogger(name) for name in names]
        for logger in loggers:
            logger.addFilter(self)

        def remove() -> None:
            self.write_summaries(at_end=True)
            for logger in loggers:
                logger.removeFilter(self)

        return remove

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written; of a kind that was not seen for a minute."""
        if record.levelno < logging.WARNING or getattr(record, "is_summary", False):
            return True
        kind = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        with self._lock:
            if kind not in self._seen and len(self._seen) >= _MOST_KINDS:
                kind = (record.name, record.levelno, "")
            seen = self._seen.get(kind)
            if seen is None:
                self._seen[kind] = _Seen(since=now, text=record.getMessage())
                return True
            seen.text = record.getMessage()
            seen.count += 1
        self.write_summaries()
        return False

    def write_summaries(self, *, at_end: bool = False) -> None:
        """Write what was left out in the last minute, if a minute is over; at the end in any case."""
        now = self._clock()
        due: list[tuple[_Kind, _Seen]] = []
        with self._lock:
            for kind, seen in list(self._seen.items()):
                if not at_end and now - seen.since < INTERVAL_S:
                    continue
                if seen.count:
                    due.append((kind, seen))
                    self._seen[kind] = _Seen(since=now, text=seen.text)
                else:
                    del self._seen[kind]  # a quiet minute: the next one is a first one again
        for (name, level, _), seen in due:
            text = f"{seen.text} ({seen.count:,} more like this, {now - seen.since:.0f} s)"
            logging.getLogger(name).log(level, "%s", text, extra={"is_summary": True})
