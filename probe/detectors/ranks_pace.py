"""Finds the rank that the others wait for. Numbers only.

In synchronous training the steps of all ranks take the same time, because they wait for each other in
backward or right after it. What tells them apart is the time before backward: data, forward, the update.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from .ranks import RankFinding
from .ranks_lineup import Lineup

WINDOW: Final = 64
"""Steps that are looked at together."""
EVERY: Final = 16
"""Looked at whenever the step's number is divisible by this, so that whoever looks says the same."""
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
_SAME_PACE: Final = 0.1
"""Ranks whose steps take times that differ by more do not wait for each other."""

Floats = npt.NDArray[np.float64]


class PaceWatch:
    """Follows when each rank of one model comes to its backward.

    Args:
        expected: the run's world size.
    """

    def __init__(self, expected: int) -> None:
        self.lineup: Lineup[tuple[float, float, float]] = Lineup(expected)
        self._ranks: tuple[int, ...] = ()
        self._rows: deque[Floats] = deque(maxlen=WINDOW)
        """(ranks, 3) of each step: time before backward, time of the step, when it ended."""
        self._suspected: RankFinding | None = None
        self._running: dict[int, RankFinding] = {}

    def add(self, rank: int, step: int, time: float, *, before_backward_s: float, step_s: float) -> None:
        """A rank's times of a step."""
        self.lineup.add(rank, step, time, (before_backward_s, step_s, time))

    def findings(self, *, everything: bool = False) -> list[RankFinding]:
        """Judge every step that all ranks have passed; return what is new or has changed."""
        found: list[RankFinding] = []
        for step, times in self.lineup.take(everything=everything):
            ranks = tuple(times)
            if ranks != self._ranks:
                self._ranks = ranks
                self._rows.clear()
            self._rows.append(np.array(list(times.values())))
            if step % EVERY == 0 and len(self._rows) == WINDOW and len(ranks) > 1:
                found += self._judge(step)
        return found

    def _judge(self, step: int) -> list[RankFinding]:
        times = np.stack(self._rows)
        before, steps = times[:, :, 0], times[:, :, 1]
        paces = np.median(steps, axis=0)
        step_s = float(np.median(paces))
        if np.ptp(paces) > _SAME_PACE * step_s:
            self._suspected = None
            return []
        typical = np.median(before, axis=0)
        order = np.argsort(typical)
        last = int(order[-1])
        rank = self._ranks[last]
        late_s = float(typical[last] - np.median(np.delete(typical, last)))
        rivals = np.delete(before, last, axis=1).max(axis=1)
        share = float(np.mean(before[:, last] > rivals + LATE_SHARE * step_s / 2))
        found = [
            self._end(other, step)
            for other in [*self._running]
            if other != rank or late_s < _AGAIN_SHARE * step_s
        ]
        if rank in self._running or late_s <= max(LATE_SHARE * step_s, LATE_S) or share < LAST_SHARE:
            self._suspected = None
            return found
        if self._suspected is None or self._suspected.rank != rank:
            self._suspected = self._describe(rank, step, late_s, step_s, share)
        lasted_s = float(times[-1, :, 2].max()) - self._suspected.time + float(steps.max(axis=1).sum())
        if lasted_s >= LEAST_S:
            self._running[rank] = replace(self._suspected, last_step=step)
            found.append(self._running[rank])
        return found

    def _describe(self, rank: int, step: int, late_s: float, step_s: float, share: float) -> RankFinding:
        return RankFinding(
            kind="performance_degradation",
            severity="warning",
            rank=rank,
            subject=f"rank {rank}",
            advice="late",
            step=step,
            time=float(self._rows[-1][:, 2].max()),
            message=(
                f"Rank {rank} holds up the others: it comes to backward {late_s * 1e3:.3g} ms later, "
                f"{late_s / step_s:.0%} of each step\n"
                f"It was the last of {len(self._ranks)} ranks at {share:.0%} of the last {WINDOW} steps. "
                "Its data loading, its forward or its update takes longer; the others wait in the all-reduce."
            ),
            value=late_s,
            threshold=max(LATE_SHARE * step_s, LATE_S),
            baseline={"median_step_s": step_s, "share_of_steps_last": share},
            affected=(f"rank {rank}",),
            last_step=step,
        )

    def close(self) -> list[RankFinding]:
        """End what is running: the ranks are over."""
        return [self._end(rank, said.last_step) for rank, said in [*self._running.items()]]

    def _end(self, rank: int, step: int) -> RankFinding:
        return replace(self._running.pop(rank), last_step=step, ended=True)
