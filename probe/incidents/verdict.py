"""What judging steps has given: a value that is returned, and that nobody changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ..detectors.base import Finding
from ..wire import Event
from .lasting import LastingFault

SUSPICIOUS: Final = frozenset(
    {
        *("gradient_explosion", "gradient_vanishing", "zero_gradient", "loss_spike", "loss_divergence"),
        *("dead_units", "saturated_activation", "update_ratio_high", "poor_initialization"),
    }
)
"""Kinds of events that modules' numbers say more about."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
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
    lasting: LastingFault | None = None
    """Of a step that only counted in open events: so does the next one, if it is bad in the same way."""


NOTHING_FOUND: Final = Verdict()


def first_critical(begun: Sequence[Event], findings: Sequence[Finding]) -> str | None:
    """The message of what is critical: of its event where that begins, for it says more."""
    messages = [event.message for event in begun if event.severity == "critical"]
    messages += [finding.message for finding in findings if finding.severity == "critical"]
    return messages[0] if messages else None


def suspicion_of(begun: Sequence[Event]) -> str | None:
    """Why modules' numbers would say more, the newest reason."""
    reasons = [event for event in begun if event.kind in SUSPICIOUS and event.severity != "info"]
    return f"{reasons[-1].kind} at step {reasons[-1].step}" if reasons else None


def is_alarming(findings: Sequence[Finding]) -> bool:
    """Whether one of them is a warning or worse."""
    return any(finding.severity != "info" for finding in findings)
