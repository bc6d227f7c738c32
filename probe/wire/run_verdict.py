"""The verdict on a run: nothing, warnings, or critical; and the fault that it names. Pure.

The page's verdict line and a notebook's card ask here; a training's closing line chooses its event by
`causes.worst_cause`, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from .causes import Cause, group_by_cause, worst_cause
from .event_texts import headline
from .records import Event

State: TypeAlias = Literal["none", "warning", "critical"]
_LASTING: Final = 5
"""Steps whose losses are all NaN or Inf before a run is called bad by them alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """What is to be said of a run as a whole."""

    state: State
    sentence: str
    cause: Cause | None = None
    """The fault that it names; None where there is none, or only the numbers show it."""


def run_verdict(
    events: Sequence[Event], *, last_step: int | None, first_step: int = 0, losses: Sequence[float] = ()
) -> RunVerdict:
    """Return the verdict.

    Args:
        events: that count, in any order.
        last_step: newest step; None before the first.
        first_step: of the newest start.
        losses: of the newest steps, in order: they may be bad though no event says so.
    """
    cause = worst_cause(group_by_cause(events))
    if cause is not None and cause.severity == "critical":
        return RunVerdict(state="critical", sentence=headline(cause.origin), cause=cause)
    if bad := _lasting_nonfinite(losses):
        return RunVerdict(state="critical", sentence=bad)
    if cause is not None:
        return RunVerdict(state="warning", sentence=headline(cause.origin), cause=cause)
    return RunVerdict(state="none", sentence=_quiet(last_step, first_step))


def _lasting_nonfinite(losses: Sequence[float]) -> str:
    """Say that no newest loss is finite; empty where one is, or there are too few."""
    if len(losses) < _LASTING or any(map(math.isfinite, losses)):
        return ""
    word = "NaN" if math.isnan(losses[-1]) else "Inf"
    return f"The loss is {word}: none of the last {len(losses):,} is finite, and no event explains it"


def _quiet(last_step: int | None, first_step: int) -> str:
    if last_step is None:
        return "No step yet"
    count = last_step + 1 - min(first_step, last_step)
    return f"No warnings in {count:,} step{'' if count == 1 else 's'}"
