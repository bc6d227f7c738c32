"""What judging steps has given: a value that is returned, and that nobody changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found at one step, or at several quiet ones that were judged in a row."""

    kinds: frozenset[str] = frozenset()
    """Of all findings, those of running episodes too."""
    critical: str | None = None
    """Message of the first critical event or finding of the last step, new or not."""
    suspicion: str | None = None
    """Why a closer look at the modules is wanted, where it is."""
    alarms: tuple[int, ...] = ()
    """Numbers of the steps with a warning or worse."""
    replayed: bool = False
    """Whether a replay or a bundle has made the step take longer."""


NOTHING_FOUND = Verdict()
