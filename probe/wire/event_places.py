"""Whether a stack of an event ends where the fault began, or only where it was noticed. Pure.

The probe fills `Event.noticed_at` by it, and the page marks lines by it, of older journals too.
"""

from __future__ import annotations

from typing import Final

from .records import Event, Origin, Stacks, is_in_derivative

LOCATED_KINDS: Final = frozenset({"exception", "out_of_memory", "hang", "memory_leak", "custom", "snapshot"})
"""Kinds whose stack of the training loop ends in the line that they are about."""
BEGAN: Final = "▶"
"""Marks a line at which something began."""
NOTICED: Final = "▷"
"""Marks a line at which something was only noticed."""


def has_origin_line(kind: str, origin: Origin | None, stacks: Stacks) -> bool:
    """Whether the innermost line of one of the stacks is known to be the one at which it began."""
    if kind in LOCATED_KINDS:
        return True
    return origin is not None and (bool(stacks.forward) or is_in_derivative(origin, stacks.backward))


def is_only_noticed(event: Event) -> bool:
    """Whether the line that an event shows is only the one at which it was noticed."""
    return event.noticed_at is not None or not has_origin_line(event.kind, event.origin, event.stacks)
