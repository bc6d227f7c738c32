"""What `dashboard run` leaves of the probe's log on stderr. Imports nothing of torch."""

from __future__ import annotations

import logging

from ...delivery.stderr import say, speak_to_real_stderr

_PACKAGE = __name__.partition(".calls.launch")[0]


class _CriticalLines(logging.Handler):
    """One line per critical event, whatever the script has done to Python's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage().splitlines()[0].removeprefix("nanscope: "))


def redirect_log(*, is_quiet: bool) -> None:
    """Keep the probe's log out of the script's: only what is critical is said, on the real stderr."""
    speak_to_real_stderr()
    logger = logging.getLogger(_PACKAGE)
    logger.propagate = False
    handler = logging.NullHandler() if is_quiet else _CriticalLines(level=logging.ERROR)
    if not any(type(one) is type(handler) for one in logger.handlers):
        logger.addHandler(handler)
