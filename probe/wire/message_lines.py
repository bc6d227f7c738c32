"""Lines of an event's message that mean more than their text: written by the probe, told apart by the page.

Standard library only.
"""

from __future__ import annotations

from typing import Final

MOVED: Final = "What changed before (newest first): "
"""Then what left its usual range, the newest first, with `EARLIER` between."""
EARLIER: Final = " <- "
BUNDLE: Final = "Bundle for dashboard replay: "
"""Then the folder of a bundle that can be replayed."""
BEING_WRITTEN: Final = "Its bundle is still being written: "
"""Then the folder that it will be. A later state of the event has another line in its place."""
NOT_DETERMINED: Final = "Origin not determined: "
"""Then why nothing is known of where a NaN or Inf began."""
NO_LINE: Final = "Line not known: "
"""Then why of the operation at which it began no line is known."""


def moves(message: str) -> list[str]:
    """What left its usual range before the event, the earliest first; empty where nothing is said of it."""
    for line in message.splitlines():
        if line.startswith(MOVED):
            return line.removeprefix(MOVED).split(EARLIER)[::-1]
    return []


def bundle(message: str) -> str | None:
    """The folder of the event's bundle, where there is one that can be replayed."""
    for line in message.splitlines():
        if line.startswith(BUNDLE):
            return line.removeprefix(BUNDLE)
    return None


def why_no_line(message: str) -> str | None:
    """Why the line at which it began is not known, in one sentence; None where the message does not say."""
    lines = (line for line in message.splitlines() if line.startswith((NOT_DETERMINED, NO_LINE)))
    return next(lines, None)


def is_plain(line: str) -> bool:
    """Whether a line is nothing but text."""
    return not line.startswith((MOVED, BUNDLE))
