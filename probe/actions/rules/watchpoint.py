"""One watchpoint at work: judges its condition at every step. On the training thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from ...delivery.control.grammar import HISTORY_STEPS, Quantity, compared_with_history, quantities
from ...delivery.control.parser import parse, without_when
from ...delivery.control.rule_options import WatchpointOptions
from ...detectors.base import Finding
from .call_times import CallTimes
from .compiled import Witness, compile_condition
from .episode import RuleEpisode
from .quantities import StepNumbers

_SHOWN_NAMES: Final = 1000


class Verdict(NamedTuple):
    """What a step is by one watchpoint."""

    is_judged: bool
    """Whether the step has what the condition is about."""
    finding: Finding | None
    """What is to become an event, or to count to the one that is going on."""


class Watchpoint:
    """A condition, its histories and its episode.

    Attributes:
        options: as it was asked for.
        quantities: what its condition is made of.
        is_late: whether it can be judged only after the step's update.
        episode: its events.
        history_bytes: of its histories, once `measure` was told of the matches.
        dropped: why it is judged no more; None while it is.
    """

    def __init__(self, options: WatchpointOptions) -> None:
        self.options = options
        condition = parse(options.condition)
        self.quantities = tuple(quantities(condition))
        self.is_late = any(quantity.is_late for quantity in self.quantities)
        self._compared = tuple(compared_with_history(condition))
        self.history_bytes = 0
        self.dropped: str | None = None
        self._times = CallTimes()
        self._judge = compile_condition(condition)
        self.episode = RuleEpisode(cooldown_steps=options.cooldown_steps)

    def measure(self, matches: Mapping[Quantity, int]) -> None:
        """Count what its histories will take, with so many matches of each quantity."""
        rows = [
            max(matches[quantity] for quantity in quantities(compared.left)) for compared in self._compared
        ]
        self.history_bytes = sum(rows) * HISTORY_STEPS * 8

    def observe(self, numbers: StepNumbers, step_s: float | None) -> Verdict:
        """Judge a step; `dropped` says afterwards whether that was the last time.

        Args:
            numbers: of the step.
            step_s: seconds that the step took, where they are known.
        """
        started_s = time.perf_counter()
        with np.errstate(all="ignore"):
            outcome = self._judge(numbers)
        self.dropped = self._times.add(time.perf_counter() - started_s, step_s)
        finding = self._finding(outcome.witness, numbers.step) if outcome.truth else None
        return Verdict(outcome.truth is not None, finding)

    @property
    def is_over(self) -> bool:
        """Whether it was to make one event, and that has ended; what is kept of a step is kept at once."""
        if not (self.options.once and self.episode.has_begun):
            return False
        return not self.episode.is_running or self.options.action in ("bundle", "snapshot")

    def _finding(self, witness: Witness | None, step: int) -> Finding:
        options = self.options
        return Finding(
            kind="snapshot" if options.action == "snapshot" else "custom",
            severity=options.chosen_severity,
            subject=options.name,
            message=_message(options, witness, step),
            value=None if witness is None else witness.left,
            threshold=None if witness is None else witness.right,
            baseline=dict(witness.history) or None if witness is not None else None,
            affected=() if witness is None else witness.names[:_SHOWN_NAMES],
        )


def _message(options: WatchpointOptions, witness: Witness | None, step: int) -> str:
    condition = without_when(options.condition)
    first = f"Step {step}: {condition}"
    if options.name != condition[: len(options.name)]:
        first = f"{options.name} at step {step}: {condition}"
    if witness is None:
        return first
    where = ""
    if witness.name or len(witness.names) == 1:
        more = len(witness.names) - 1
        where = f" in {witness.name or 'the root module'}" + (f" and {more} more" if more > 0 else "")
    lines = [f"{first}{where}", f"{witness.text}: {witness.left:.6g} against {witness.right:.6g}"]
    if witness.history:
        known = [f"{name} {value:.6g}" for name, value in witness.history.items() if name != "steps"]
        lines.append(f"Of its last {witness.history['steps']:.0f} measured steps: {', '.join(known)}")
    return "\n".join(lines)
