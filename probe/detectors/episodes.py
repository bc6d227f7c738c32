"""Turns the findings of successive steps into events: one episode, one event, however many steps it lasts.

Called by the session on the training thread after the detectors; does no I/O, returns what is to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ..wire import Event
from .base import Finding

PATIENCE: Final = 10
"""Quiet steps after which an episode is over."""
MAX_EVENTS_PER_KIND: Final = 200
"""Per incarnation; the last one stays open to the end of the run and counts on."""
REWRITE_S: Final = 600.0
"""A running episode is written again when its last state is this old, besides at counts 2, 4, 8, ..."""


class _Episode(msgspec.Struct):
    event: Event
    last_step: int
    written_at: float
    count: int = 1
    quiet: int = 0
    told: int = 1
    """Its count when it was written last."""

    def record(self, *, ended: bool = False) -> Event:
        """The event in its present state; everything but the count and the end is the first state's."""
        return msgspec.structs.replace(self.event, count=self.count, last_step=self.last_step, ended=ended)


def _is_turn(episode: _Episode, finding: Finding) -> bool:
    """Whether it is worse than what the episode has been: else it would be one more count of that."""
    if episode.event.severity == "info":
        return finding.severity != "info"
    was_long_a_warning = episode.event.severity == "warning" and episode.count >= PATIENCE
    return was_long_a_warning and finding.severity == "critical"


class EpisodeTracker:
    """Running episodes by model and kind. Holds at most `max_events_per_kind` of each kind."""

    def __init__(self, *, patience: int = PATIENCE, max_events_per_kind: int = MAX_EVENTS_PER_KIND) -> None:
        """Start with no episode.

        Raises:
            ValueError: an option is below 1.
        """
        for name, value in (("patience", patience), ("max_events_per_kind", max_events_per_kind)):
            if value < 1:
                raise ValueError(f"{name}={value!r} is not allowed: use 1 or more")
        self._patience = patience
        self._limit = max_events_per_kind
        self._running: dict[tuple[str, str], _Episode] = {}
        self._started: dict[str, int] = {}
        self._last: dict[str, tuple[str, str]] = {}

    def update(
        self,
        step: int,
        time: float,
        findings: Sequence[Finding],
        *,
        model: str,
        make_event: Callable[[Finding], Event],
    ) -> list[Event]:
        """Account for one step of one model and return the event records to write now.

        Args:
            step: step that the findings are about; a step that goes back ends what was running.
            time: UNIX seconds.
            findings: of this step and model; at most one of a kind counts.
            model: name of the naming root.
            make_event: builds an episode's first state (id, stacks, origin, advice); called once an episode.

        Returns:
            New events, running ones at counts 2, 4, 8, ... (or after 600 s), and ended ones.
        """
        records = self._end_restarted(step, model)
        seen: set[tuple[str, str]] = set()
        for finding in findings:
            key = self._key(model, finding.kind)
            if key not in seen:
                seen.add(key)
                records += self._hit(key, finding, step=step, time=time, make_event=make_event)
        return records + self._end_quiet(model, seen)

    def pass_quiet(self, steps: Sequence[int], model: str) -> bool:
        """Account for steps without findings all at once; False, and nothing done, where something ends.

        Args:
            steps: successive ones of one model, at least one.
            model: name of the naming root.
        """
        mine = [(key, episode) for key, episode in self._running.items() if key[0] == model]
        for key, episode in mine:
            lasts = self._is_full(key[1]) and self._last[key[1]] == key
            if not lasts and (min(steps) < episode.last_step or episode.quiet + len(steps) > self._patience):
                return False
        for _, episode in mine:
            episode.quiet += len(steps)
        return True

    def brought_up_to_date(self, time: float) -> list[Event]:
        """Return the running episodes that have grown since they were written last, as they are now.

        Args:
            time: UNIX seconds.
        """
        grown = [episode for episode in self._running.values() if episode.count != episode.told]
        for episode in grown:
            episode.written_at, episode.told = time, episode.count
        return [episode.record() for episode in grown]

    def close(self, step: int, time: float) -> list[Event]:
        """End every running episode and return their last records; a second call returns nothing.

        Args:
            step: last step of the run; an episode never ends after it.
            time: UNIX seconds.
        """
        records = []
        for episode in self._running.values():
            episode.last_step = min(episode.last_step, max(step, episode.event.step))
            episode.written_at = time
            records.append(episode.record(ended=True))
        self._running.clear()
        return records

    def has_open(self, model: str, kind: str) -> bool:
        """Whether an episode of a kind is running."""
        return (model, kind) in self._running

    def end(self, model: str, kind: str) -> list[Event]:
        """End the running episode of a kind: the next finding begins another one. Returns its last record."""
        return self._end([key for key in self._running if key == (model, kind)])

    def _key(self, model: str, kind: str) -> tuple[str, str]:
        """The episode that a finding belongs to; past the limit it is the kind's last one, of any model."""
        key = (model, kind)
        return key if key in self._running or not self._is_full(kind) else self._last[kind]

    def _is_full(self, kind: str) -> bool:
        return self._started.get(kind, 0) >= self._limit

    def _hit(
        self,
        key: tuple[str, str],
        finding: Finding,
        *,
        step: int,
        time: float,
        make_event: Callable[[Finding], Event],
    ) -> list[Event]:
        episode = self._running.get(key)
        if episode is None:
            if self._is_full(key[1]):
                return []
            return [self._start(key, make_event(finding), step=step, time=time)]
        if _is_turn(episode, finding) and not self._is_full(key[1]):
            return [*self._end([key]), self._start(key, make_event(finding), step=step, time=time)]
        episode.quiet = 0
        if step == episode.last_step:
            return []
        episode.count += 1
        episode.last_step = step
        if episode.count & (episode.count - 1) and time - episode.written_at < REWRITE_S:
            return []
        episode.written_at, episode.told = time, episode.count
        return [episode.record()]

    def _start(self, key: tuple[str, str], event: Event, *, step: int, time: float) -> Event:
        episode = _Episode(event=event, last_step=step, written_at=time)
        self._running[key] = episode
        self._started[key[1]] = self._started.get(key[1], 0) + 1
        self._last[key[1]] = key
        return episode.record()

    def _end_quiet(self, model: str, seen: set[tuple[str, str]]) -> list[Event]:
        for key, episode in self._running.items():
            if key[0] == model and key not in seen:
                episode.quiet += 1
        return self._end([key for key, item in self._running.items() if item.quiet > self._patience])

    def _end_restarted(self, step: int, model: str) -> list[Event]:
        """Steps may restart (a resume inside the process): what ran before is over."""
        return self._end([k for k, item in self._running.items() if k[0] == model and step < item.last_step])

    def _end(self, keys: list[tuple[str, str]]) -> list[Event]:
        ending = [key for key in keys if not (self._is_full(key[1]) and self._last[key[1]] == key)]
        return [self._running.pop(key).record(ended=True) for key in ending]
