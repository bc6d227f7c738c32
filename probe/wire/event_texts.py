"""What is said of an event in one line, everywhere: its headline, its kind in words, what led to it. Pure.

Page, notebook, closing line and `dashboard events` take these from here. Standard library and records alone.
"""

from __future__ import annotations

from . import message_lines
from .records import Event


def headline(event: Event) -> str:
    """The first line of the message, which says what, when and where."""
    lines = event.message.strip().splitlines()
    return lines[0] if lines else f"{kind_label(event.kind)} at step {event.step:,}"


def kind_label(kind: str) -> str:
    """A kind in words: ``nonfinite_gradient`` -> ``non-finite gradient``."""
    return kind.replace("_", " ").replace("nonfinite", "non-finite")


def led_to_it(event: Event) -> str | None:
    """What changed first before the event, or why its origin is not known; None where neither is said.

    ``Changed before it: learning rate 0.001 -> 0.3 at step 60``.
    """
    if why := message_lines.why_no_line(event.message):
        return why.strip().rstrip(".")
    moves = message_lines.moves(event.message)
    return f"Changed before it: {moves[0]}" if moves else None
