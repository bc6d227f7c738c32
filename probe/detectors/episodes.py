"""Turns the findings of successive steps into events: one episode, one event, however many steps it lasts.

Called by the session on the training thread after the detectors; does no I/O, returns what is to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ..wire import Event
from .base import Finding
from .layers import in_words

PATIENCE: Final = 10
"""Quiet steps after which an episode is over."""
MOST_PATIENCE: Final = 20
"""For `most_patience` of a run's faults: what lasts for 160 steps and pauses for 12 is one."""
MAX_EVENTS_PER_KIND: Final = 200
"""Per incarnation; the last one stays open to the end of the run and counts on."""
REWRITE_S: Final = 600.0
"""A running episode is written again when its last state is this old, besides at counts 2, 4, 8, ..."""


_NAMED: Final = 4
_LONGEST: Final = 3500
_LINE: Final = 400
"""Characters of a message, and of the line about what joined it: together below what a record may have."""


class _Episode(msgspec.Struct):
    event: Event
    last_step: int
    written_at: float
    count: int = 1
    quiet: int = 0
    told: int = 1
    """Its count when it was written last."""

    first_message: str = ""
    """Its text before anything joined it."""

    def takes_more(self, finding: Finding, step: int) -> bool:
        """Whether a warning is about more by now than at first: layers that died later count too."""
        known = list(dict.fromkeys([*self.event.propagated_to, *finding.affected]))
        if finding.severity != "warning" or len(known) == len(self.event.propagated_to):
            return False
        self.first_message = self.first_message or self.event.message
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        line = f"By step {step} it affects {len(known)}: {', '.join(map(in_words, known[:_NAMED]))}{more}"
        self.event = msgspec.structs.replace(
            self.event,
            propagated_to=known,
            message=f"{self.first_message[:_LONGEST]}\n{line[:_LINE]}",
        )
        return True

    def record(self, *, ended: bool = False) -> Event:
        """The event in its present state: the first one's but for the count, the end and what it is about."""
        return msgspec.structs.replace(self.event, count=self.count, last_step=self.last_step, ended=ended)


class EpisodeTracker:
    """Running episodes by model and kind.

    Args:
        patience: quiet steps after which an episode is over.
        most_patience: a warning is allowed as many quiet steps as it has had steps, up to this many times
            `patience`. A critical episode is not: the next one may have another origin.
        max_events_per_kind: so many of each kind are held.

    Raises:
        ValueError: an option is below 1.
    """

    def __init__(
        self,
        *,
        patience: int = PATIENCE,
        most_patience: int = 1,
        max_events_per_kind: int = MAX_EVENTS_PER_KIND,
    ) -> None:
        options = {"patience": patience, "most_patience": most_patience}
        for name, value in (*options.items(), ("max_events_per_kind", max_events_per_kind)):
            if value < 1:
                raise ValueError(f"{name}={value!r} is not allowed: use 1 or more")
        self._patience, self._longest = patience, patience * most_patience
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
        make_event: Callable[[Finding], Event] | None,
        is_whole: bool = True,
    ) -> list[Event]:
        """Account for one step of one model and return the event records to write now.

        Args:
            step: step that the findings are about; a step that goes back ends what was running.
            time: UNIX seconds.
            findings: of this step and model; at most one of a kind counts.
            model: name of the naming root.
            make_event: builds an episode's first state (id, stacks, origin, advice); called once an episode.
                None: what is running counts on, and nothing begins.
            is_whole: whether every kind was judged at this step: else those without a finding are not quiet.

        Returns:
            New events, running ones at counts 2, 4, 8, ... (or after 600 s), and ended ones.
        """
        records = self._end_restarted(step, model) if is_whole else []
        seen: set[tuple[str, str]] = set()
        for finding in findings:
            key = self._key(model, finding.kind)
            if key not in seen:
                seen.add(key)
                records += self._hit(key, finding, step=step, time=time, make_event=make_event)
        return records + self._end_quiet(model, seen) if is_whole else records

    def pass_quiet(self, steps: Sequence[int], model: str) -> bool:
        """Account for steps without findings all at once; False, and nothing done, where something ends.

        Args:
            steps: successive ones of one model, at least one.
            model: name of the naming root.
        """
        mine = [(key, episode) for key, episode in self._running.items() if key[0] == model]
        for key, episode in mine:
            lasts = self._is_full(key[1]) and self._last[key[1]] == key
            if not lasts and (
                min(steps) < episode.last_step or episode.quiet + len(steps) > self._allowed(episode)
            ):
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

    def running(self, model: str, kind: str) -> Event | None:
        """Return the first state of a kind's running episode; None where none is running."""
        episode = self._running.get((model, kind))
        return None if episode is None else episode.event

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
        make_event: Callable[[Finding], Event] | None,
    ) -> list[Event]:
        episode = self._running.get(key)
        if episode is None:
            if make_event is None or self._is_full(key[1]):
                return []
            return [self._start(key, make_event(finding), step=step, time=time)]
        if make_event and self._is_another(episode, finding) and not self._is_full(key[1]):
            return [*self._end([key]), self._start(key, make_event(finding), step=step, time=time)]
        episode.quiet = 0
        if step == episode.last_step:
            return []
        episode.count += 1
        episode.last_step = step
        has_grown = episode.takes_more(finding, step)
        if not has_grown and episode.count & (episode.count - 1) and time - episode.written_at < REWRITE_S:
            return []
        episode.written_at, episode.told = time, episode.count
        return [episode.record()]

    def _allowed(self, episode: _Episode) -> int:
        """Quiet steps after which an episode is over."""
        lasting = 0 if episode.event.severity == "critical" else min(episode.count, self._longest)
        return max(self._patience, lasting)

    def _is_another(self, episode: _Episode, finding: Finding) -> bool:
        """Whether a finding is no part of an episode that has not ended yet."""
        if episode.event.severity == "info" and finding.severity != "info":
            return True  # else a warning would be one more count of what was harmless
        was_long_a_warning = episode.event.severity == "warning" and episode.count >= PATIENCE
        if was_long_a_warning and finding.severity == "critical":
            return True
        return episode.quiet > self._patience and finding.subject != episode.event.subject

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
        return self._end([key for key, item in self._running.items() if item.quiet > self._allowed(item)])

    def _end_restarted(self, step: int, model: str) -> list[Event]:
        """Steps may restart (a resume inside the process): what ran before is over."""
        return self._end([k for k, item in self._running.items() if k[0] == model and step < item.last_step])

    def _end(self, keys: list[tuple[str, str]]) -> list[Event]:
        ending = [key for key in keys if not (self._is_full(key[1]) and self._last[key[1]] == key)]
        return [self._running.pop(key).record(ended=True) for key in ending]
