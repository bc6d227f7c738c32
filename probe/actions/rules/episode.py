"""One event for as long as a rule goes on holding, with a count and an end. Pure but for what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...detectors.base import Finding
from ...detectors.episodes import EpisodeTracker
from ...wire import Event

PATIENCE: Final = 3
"""Judged steps at which a rule does not hold before its event is over."""


class RuleEpisode:
    """The episodes of one rule.

    Args:
        cooldown_steps: for so many steps after the beginning of an event no other begins.

    Attributes:
        is_running: whether an event is going on.
    """

    def __init__(self, *, cooldown_steps: int = 0) -> None:
        self._tracker = EpisodeTracker(patience=PATIENCE)
        self._cooldown_steps = cooldown_steps
        self._began: int | None = None
        self.is_running = False

    @property
    def has_begun(self) -> bool:
        """Whether there was an event so far."""
        return self._began is not None

    def update(
        self, step: int, time: float, finding: Finding | None, make_event: Callable[[Finding], Event]
    ) -> list[Event]:
        """Account for a judged step; return the states of events that are to be written."""
        if finding is None and not self.is_running:
            return []
        if not self.is_running and self._is_cooling(step):
            return []

        def begin(finding: Finding) -> Event:
            self._began, self.is_running = step, True
            return make_event(finding)

        findings = [] if finding is None else [finding]
        records = self._tracker.update(step, time, findings, model="", make_event=begin)
        if records and records[-1].ended:
            self.is_running = False
        return records

    def close(self, step: int, time: float) -> list[Event]:
        """End what is going on."""
        self.is_running = False
        return self._tracker.close(step, time)

    def _is_cooling(self, step: int) -> bool:
        # Steps may begin again, as after a rollback.
        return self._began is not None and self._began < step <= self._began + self._cooldown_steps
