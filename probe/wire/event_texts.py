"""What is said of an event in one line, everywhere: its headline, its kind in words, what led to it. Pure.

Page, notebook, closing line and `dashboard events` take these from here. Standard library and records alone.
"""

from __future__ import annotations

import msgspec

from . import message_lines
from .records import Event


def model_label(event: Event) -> str:
    """``model 17: ``, before a sentence about one of several models made one after the other; else empty."""
    return "" if event.member is msgspec.UNSET else f"model {event.member + 1:,}: "


def headline(event: Event) -> str:
    """The first line of the message, which says what, when and where."""
    lines = event.message.strip().splitlines()
    return lines[0] if lines else f"{kind_label(event.kind)} at step {event.step:,}"


def kind_label(kind: str) -> str:
    """A kind in words: ``nonfinite_gradient`` -> ``non-finite gradient``."""
    return kind.replace("_", " ").replace("nonfinite", "non-finite")


def led_to_it(event: Event) -> tuple[str, ...]:
    """What changed first before the event, and why its origin is not known, in sentences.

    ``Changed before it: learning rate 0.001 -> 0.3 at step 60``.
    """
    moves = message_lines.moves(event.message)[:1]
    why = message_lines.why_no_line(event.message)
    reasons = () if why is None else (why,)
    return (*(f"Changed before it: {move}" for move in moves), *reasons)
