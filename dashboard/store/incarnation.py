"""What is known about one start of one rank: its description, its newest step, and whether it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from probe.delivery.recorder.process_identity import is_gone
from probe.wire import RunStart

from .protocol import RankSummary

SILENT_AFTER_S: Final = 30.0
"""A rank that says nothing for this long, and has not ended, is silent (the helper speaks each second)."""
GONE_AFTER_S: Final = 15.0
"""A rank that says nothing for this long is looked for among this machine's processes: the helper that would
say that it was killed may have been killed too. Until then its last words may be on their way, or in a spool
that is read every 10 s."""
LIVE_WITHIN_S: Final = 300.0
"""Records that arrive within this time of their own clock count as live: clocks need not agree."""

MAX_RETURNS: Final = 64


class IncarnationState(msgspec.Struct, kw_only=True):
    """What is known about one incarnation of one rank besides its `RunStart`."""

    first_step: int | None = None
    last_step: int | None = None
    """Step of the newest frame, not the largest one."""
    last_time: float | None = None
    returns: list[tuple[int, int]] = []
    """(step, newest step before) wherever the numbers went back: the newest `MAX_RETURNS`."""
    heard: float | None = None
    """Newest record time (the training machine's clock), UNIX seconds."""
    arrived: float | None = None
    """When something last arrived (our clock)."""
    outcome: str | None = None
    host_state: str | None = None
    lost_before_write: int = 0
    stage: str | None = None
    """Which gradient the newest frame with one has measured."""
    taken: int = 0
    """Frames before this number are in it already: where they come again, nothing has gone back."""
    newest_member: int = 0
    """Which of the models that are made one after the other is trained."""
    followed_at: float | None = None
    """When another of these models took its place, UNIX seconds: it is over if it has made no step since."""

    def words_known(self) -> int:
        """Return a number below 2**62 that grows with what was said beside frames; theirs is `taken`."""
        heard = int(min(max(0.0, self.heard or 0.0), 2e9) * 1000)
        return (self.outcome is not None) << 61 | heard << 20 | min(self.taken, (1 << 20) - 1)

    def merged(self, other: IncarnationState) -> IncarnationState:
        """Return what both know together; each may have taken records that the other has not."""
        frames = self if self.taken > other.taken else other
        words = self if self.words_known() > other.words_known() else other
        return IncarnationState(
            first_step=frames.first_step,
            last_step=frames.last_step,
            last_time=frames.last_time,
            returns=frames.returns,
            stage=frames.stage,
            taken=frames.taken,
            newest_member=max(self.newest_member, other.newest_member),
            followed_at=_latest(self.followed_at, other.followed_at),
            heard=_latest(self.heard, other.heard),
            arrived=_latest(self.arrived, other.arrived),
            outcome=words.outcome,
            host_state=words.host_state or self.host_state or other.host_state,
            lost_before_write=max(self.lost_before_write, other.lost_before_write),
        )


def _latest(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one


@dataclass(slots=True)
class Incarnation:
    """One start of one rank of a run."""

    run: str
    rank: int
    number: int
    start: RunStart | None = None
    state: IncarnationState = field(default_factory=IncarnationState)
    layouts: dict[int, int] = field(default_factory=dict)
    """Layout number -> timeline."""
    is_gone: bool = False
    """Whether its process was looked for on this machine, and is no more: that does not change."""

    def description(self) -> RunStart:
        """Return its `RunStart`, or what can be said when that record was lost."""
        return self.start or RunStart(
            run=self.run, rank=self.rank, incarnation=self.number, time=self.number / 1e9
        )

    def hear(self, record_time: float | None, now: float) -> None:
        """Note that something arrived."""
        self.state.arrived = now
        if record_time is not None and (self.state.heard is None or record_time > self.state.heard):
            self.state.heard = record_time

    def summary(self, now: float) -> RankSummary:
        """Return the line of the rank selector."""
        state = self.state
        return RankSummary(
            rank=self.rank,
            incarnation=self.number,
            state=self._word(now),
            first_step=state.first_step,
            last_step=state.last_step,
            last_time=state.last_time,
            lost_before_write=state.lost_before_write,
        )

    def is_over(self, now: float, *, quiet_s: float) -> bool:
        """Whether it has ended, or has said nothing for so long that it may have."""
        has_ended = self.state.outcome is not None or self.state.host_state in ("killed", "ended")
        return has_ended or self.is_followed or self._silent_s(now) > quiet_s

    @property
    def is_followed(self) -> bool:
        """Whether another model of its run has taken its place, and it has made no step since."""
        followed = self.state.followed_at
        return followed is not None and followed >= max(self.state.last_time or 0.0, self.description().time)

    def _silent_s(self, now: float) -> float:
        arrived = self.state.arrived or 0.0
        heard = self.description().time if self.state.heard is None else self.state.heard
        return now - (arrived if abs(arrived - heard) <= LIVE_WITHIN_S else heard)

    def _word(self, now: float) -> str:
        state = self.state
        if state.outcome is not None:
            return state.outcome
        if self.is_followed:
            return "finished"
        if state.host_state == "killed":
            return "killed"
        if state.host_state == "ended":
            return "finished"
        silent_s = self._silent_s(now)
        if silent_s > GONE_AFTER_S and self._has_gone():
            return "killed"
        return "running" if silent_s <= SILENT_AFTER_S else "silent"

    def _has_gone(self) -> bool:
        """Whether its process, which has written no end, is no more as far as this machine sees."""
        self.is_gone = self.is_gone or (self.start is not None and is_gone(self.start) is True)
        return self.is_gone
