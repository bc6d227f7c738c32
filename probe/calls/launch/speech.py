"""What `dashboard run` says on stderr. Imports nothing of torch."""

from __future__ import annotations

import contextlib
import logging
import sys

_PACKAGE = __name__.partition(".calls.launch")[0]


def say(line: str) -> None:
    """Write one line to the process's real stderr, wherever the script sends its own."""
    # A terminal that has gone is no reason to disturb the script.
    with contextlib.suppress(OSError, ValueError):
        if sys.__stderr__ is not None:
            sys.__stderr__.write(f"nanscope: {line}\n")
            sys.__stderr__.flush()


class _CriticalLines(logging.Handler):
    """One line per critical event, whatever the script has done to Python's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage().splitlines()[0].removeprefix("nanscope: "))


def redirect_log(*, is_quiet: bool) -> None:
    """Keep the probe's log out of the script's: only what is critical is said, on stderr."""
    logger = logging.getLogger(_PACKAGE)
    logger.propagate = False
    logger.addHandler(logging.NullHandler() if is_quiet else _CriticalLines(level=logging.ERROR))
