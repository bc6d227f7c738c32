"""Counts and rates of a run out of its events: what Python's summaries, the HTTP API and reports say. Pure.

An *anomaly* is an event at severity warning or critical. An event lasts (an episode): its `count` is the
number of steps at which it was found, and the counts by kind are sums of those. What comes before the newest
event `cleared` (`run.clear()`) is left out: counts begin anew there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from .records import Event

LOSS_KINDS: Final = frozenset({"nonfinite_loss", "loss_spike", "loss_divergence", "loss_plateau"})
TRAINING_FIELDS: Final = (
    *("total_steps", "anomaly_steps", "gradient_explosions", "gradient_vanishing", "loss_anomalies"),
    *("anomaly_rate", "loss_anomaly_rate", "gradient_explosion_rate", "gradient_vanishing_rate"),
)
"""What a training summary says, everywhere."""
CLEARED: Final = "cleared"
"""Kind of the event that `run.clear()` writes."""
_ANOMALOUS: Final = frozenset({"critical", "warning"})


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts in steps, if nothing else is said; rates are fractions (0-1) of `total_steps`."""

    total_steps: int = 0
    total_anomalies: int = 0
    """Events at warning or critical."""
    anomaly_steps: int = 0
    """Steps at which one of them was found; never less than there were, see `_steps_of`."""
    gradient_explosions: int = 0
    gradient_vanishing: int = 0
    loss_anomalies: int = 0
    """Of the kinds in `LOSS_KINDS`, of any severity."""
    events: int = 0
    """Events of every severity."""
    nonfinite_steps: int = 0
    """Steps with NaN or Inf in loss, gradients, parameters, ..."""
    steps_by_kind: dict[str, int] = {}
    events_by_kind: dict[str, int] = {}
    events_by_severity: dict[str, int] = {}

    @property
    def anomaly_rate(self) -> float:
        """Share of steps with an anomaly."""
        return self.rate(self.anomaly_steps)

    @property
    def loss_anomaly_rate(self) -> float:
        """Share of steps with an anomaly of the loss."""
        return self.rate(self.loss_anomalies)

    @property
    def gradient_explosion_rate(self) -> float:
        """Share of steps with exploding gradients."""
        return self.rate(self.gradient_explosions)

    @property
    def gradient_vanishing_rate(self) -> float:
        """Share of steps with vanishing gradients."""
        return self.rate(self.gradient_vanishing)

    def rate(self, steps: int) -> float:
        """Return a count of steps as a share of all of them, 1 at most; 0 before the first step."""
        return min(1.0, steps / self.total_steps) if self.total_steps else 0.0

    def training(self) -> dict[str, Any]:
        """Return the nine fields of a training summary, in the order in which they are documented."""
        return {name: getattr(self, name) for name in TRAINING_FIELDS}


def count_run(events: Iterable[Event], total_steps: int, *, is_whole: bool = False) -> RunCounts:
    """Count a rank's events, each in its latest state.

    Args:
        events: of one rank; those of several ranks would count a step more than once.
        total_steps: that the rank has made, those before a clearing too.
        is_whole: count what came before a clearing too, as a report does, which shows all of it.
    """
    known, before = (list(events), 0) if is_whole else since_cleared(events)
    total_steps = max(0, total_steps - before)
    steps: Counter[str] = Counter()
    for event in known:
        steps[event.kind] += event.count
    anomalies = [event for event in known if event.severity in _ANOMALOUS]
    return RunCounts(
        total_steps=total_steps,
        total_anomalies=len(anomalies),
        anomaly_steps=_steps_of(anomalies),
        gradient_explosions=steps["gradient_explosion"],
        gradient_vanishing=steps["gradient_vanishing"],
        loss_anomalies=_steps_of([event for event in known if event.kind in LOSS_KINDS]),
        events=len(known),
        nonfinite_steps=_steps_of([event for event in known if event.kind.startswith("nonfinite")]),
        steps_by_kind=dict(steps),
        events_by_kind=dict(Counter(event.kind for event in known)),
        events_by_severity=dict(Counter(event.severity for event in known)),
    )


def since_cleared(events: Iterable[Event]) -> tuple[list[Event], int]:
    """Return the events after the newest `cleared`, and the number of steps before it.

    All of them, and 0, where there is none. What was found in the same instant as the clearing is before it.
    """
    known = list(events)
    marks = [event for event in known if event.kind == CLEARED]
    if not marks:
        return known, 0
    newest = max(marks, key=lambda event: (event.time, event.step))
    steps = newest.evidence.value
    before = int(steps) if steps is not None and 0 <= steps < 2**53 else 0
    return [event for event in known if event.time > newest.time], before


def _steps_of(events: Sequence[Event]) -> int:
    """Return how many steps have one of these.

    Of an episode the first and the last step and the number of steps are known, not which they are. Both the
    union of the ranges and the sum of the numbers are at least the truth: the smaller one is taken. It is
    exact where episodes have no holes, and where they do not overlap.
    """
    covered, end = 0, -1
    for event in sorted(events, key=lambda event: event.step):
        last = event.step if event.last_step is None else max(event.step, event.last_step)
        covered += max(0, last - max(event.step, end + 1) + 1)
        end = max(end, last)
    return min(covered, sum(event.count for event in events))
