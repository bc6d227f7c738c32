"""Finds the rank that the others wait for. Numbers only.

In synchronous training the steps of all ranks take the same time, because they wait for each other at the end
of backward or right after it. What tells them apart is what each does by itself: the time before backward
(data, forward, the update), and that of its backward until its own graph has run. All of it is the host's
time: what a device takes longer shows where its host waits for it, which is where all ranks wait alike.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..medians import median_of
from .lineup import Lineup
from .replicas import RankFinding

WINDOW: Final = 64
"""Steps that are looked at together."""
EVERY: Final = 16
"""Looked at whenever the step's number is divisible by this, so that all readers say the same."""
LEAST_S: Final = 10.0
"""It has to be so for this long, the window included: what passes sooner is other programs' doing."""
LATE_SHARE: Final = 0.2
"""A straggler comes later than the others by this part of a step ..."""
LATE_S: Final = 0.005
"""... and by this much ..."""
LAST_SHARE: Final = 0.8
"""... and is the last one at this part of the steps."""
_AGAIN_SHARE: Final = 0.1
"""It is none any more when it comes later by less than this part of a step."""
_MORE: Final = 1.25
"""Backward is named where a rank is later with all its own work than before backward, by this factor."""
_WAIT_SHARE: Final = 0.5
"""Of the time by which a rank is late: where it waits so much longer for processors than the others do, that
is why it is late."""
_SAME_PACE: Final = 0.1
"""Ranks whose steps take times that differ by more do not wait for each other."""

Floats = npt.NDArray[np.float64]


class Pace(NamedTuple):
    """A rank's times of a step, in seconds."""

    before_backward_s: float
    step_s: float
    own_s: float | None
    """Before backward, and in it until the rank's own graph had run; None where that was not seen."""
    waited: float = 0.0
    """Part (0-1) of the time for which it waited for processors that other programs had."""


class _Lag(NamedTuple):
    """The rank that is last by one of the times, and by how much."""

    part: Literal["before", "own"]
    place: int
    late_s: float
    share: float
    """Of the steps at which it was the last one."""


class PaceWatch:
    """Follows when each rank of one model comes to its backward, and to its end.

    Args:
        expected: the run's world size.
    """

    def __init__(self, expected: int) -> None:
        self.lineup: Lineup[tuple[Pace, float]] = Lineup(expected)
        self._ranks: tuple[int, ...] = ()
        self._rows: deque[Floats] = deque(maxlen=WINDOW)
        """(ranks, 5) of each step: what a `Pace` has, NaN where unknown, and when the step ended."""
        self._suspected: RankFinding | None = None
        self._running: dict[int, RankFinding] = {}

    def add(self, rank: int, step: int, time: float, pace: Pace) -> None:
        """A rank's times of a step."""
        self.lineup.add(rank, step, time, (pace, time))

    def findings(self, *, everything: bool = False) -> list[RankFinding]:
        """Judge every step that all ranks have passed; return what is new or has changed."""
        found: list[RankFinding] = []
        for step, times in self.lineup.take(everything=everything):
            ranks = tuple(times)
            if ranks != self._ranks:
                self._ranks = ranks
                self._rows.clear()
            # None becomes NaN.
            self._rows.append(np.array([(*pace, time) for pace, time in times.values()], np.float64))
            if step % EVERY == 0 and len(self._rows) == WINDOW and len(ranks) > 1:
                found += self._judge(step)
        return found

    def _judge(self, step: int) -> list[RankFinding]:
        times = np.stack(self._rows)
        steps = times[:, :, 1]
        paces = median_of(steps, axis=0)
        step_s = float(median_of(paces))
        if np.ptp(paces) > _SAME_PACE * step_s:
            self._suspected = None
            return []
        lag = _find_lag(times, step_s)
        rank = self._ranks[lag.place]
        found = [
            self._end(other, step)
            for other in [*self._running]
            if other != rank or lag.late_s < _AGAIN_SHARE * step_s
        ]
        finding = self._describe(rank, step, lag, step_s, _waited_more(times, lag.place))
        said = self._running.get(rank)
        is_worse = said is None or (said.severity == "info" and finding.severity != "info")
        if lag.late_s <= max(LATE_SHARE * step_s, LATE_S) or lag.share < LAST_SHARE or not is_worse:
            self._suspected = None
            return found
        if self._suspected is None or self._suspected.rank != rank:
            self._suspected = finding
        lasted_s = float(times[-1, :, 4].max()) - self._suspected.time
        if said is None:
            lasted_s += float(steps.max(axis=1).sum())
        if lasted_s >= LEAST_S:
            if said is not None:
                # It waited for processors; now it is slow itself.
                found.append(self._end(rank, step))
            self._running[rank] = replace(self._suspected, last_step=step)
            found.append(self._running[rank])
        return found

    def _describe(self, rank: int, step: int, lag: _Lag, step_s: float, waited: float) -> RankFinding:
        if lag.part == "before":
            does, longer = "comes to backward", "Its data loading, its forward or its update takes longer"
        else:
            does, longer = (
                "is done with its own backward",
                "All that it computes, or its backward, takes longer",
            )
        is_busy = waited * step_s >= _WAIT_SHARE * lag.late_s
        if is_busy:
            longer = "Other programs have the processors that it waits for"
        return RankFinding(
            kind="performance_degradation",
            severity="info" if is_busy else "warning",
            rank=rank,
            subject=f"rank {rank}",
            advice="late" if lag.part == "before" else "late in backward",
            step=step,
            time=float(self._rows[-1][:, 4].max()),
            message=(
                f"Rank {rank} holds up the others: it {does} {lag.late_s * 1e3:.3g} ms later, "
                f"{lag.late_s / step_s:.0%} of each step\n"
                f"It was the last of {len(self._ranks)} ranks at {lag.share:.0%} of the last {WINDOW} steps. "
                f"{longer}; the others wait in the all-reduce."
            ),
            value=lag.late_s,
            threshold=max(LATE_SHARE * step_s, LATE_S),
            baseline={"median_step_s": step_s, "share_of_steps_last": lag.share, "waited_share": waited},
            affected=(f"rank {rank}",),
            last_step=step,
        )

    def close(self) -> list[RankFinding]:
        """End what is running: the ranks are over."""
        return [self._end(rank, said.last_step) for rank, said in [*self._running.items()]]

    def _end(self, rank: int, step: int) -> RankFinding:
        return replace(self._running.pop(rank), last_step=step, ended=True)


def _find_lag(times: Floats, step_s: float) -> _Lag:
    """Find who is last before backward, and who is last with all its own work; return whichever is later.

    Where collectives run inside of backward (batch norms over all ranks, shards), the wait for others is in
    everybody's own work, which is the same for all then: who is last before backward is so all the same. But
    who is ahead of another one with its own work holds up nobody.
    """
    before = _lag_of("before", times[:, :, 0], step_s)
    own_s = times[:, :, 2]
    if not np.isfinite(own_s).all():
        return before
    own = _lag_of("own", own_s, step_s)
    typical = median_of(own_s, axis=0)
    is_ahead = typical.max() - typical[before.place] > _AGAIN_SHARE * step_s
    return own if is_ahead or own.late_s > _MORE * before.late_s else before


def _waited_more(times: Floats, place: int) -> float:
    """Return the part of the time for which a rank waited for processors, beyond what the others did."""
    waited = times[:, :, 3].mean(axis=0)
    return max(float(waited[place] - median_of(np.delete(waited, place))), 0.0)


def _lag_of(part: Literal["before", "own"], taken: Floats, step_s: float) -> _Lag:
    typical = median_of(taken, axis=0)
    last = int(np.argmax(typical))
    late_s = float(typical[last] - median_of(np.delete(typical, last)))
    rivals = np.delete(taken, last, axis=1).max(axis=1)
    return _Lag(part, last, late_s, float(np.mean(taken[:, last] > rivals + LATE_SHARE * step_s / 2)))
