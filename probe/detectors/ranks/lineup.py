"""Holds what each rank says of a step until all ranks have said it. Plain bookkeeping, no I/O, no clock.

Ranks arrive in any order, late, twice or never: a step is given out once every rank has passed it. Who has
never been seen is waited for by the steps' own times, who has fallen silent by many steps: whole
journals are read in pieces, and a piece of one rank may be hours long.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final, Generic, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 20.0
"""A step this much older than the newest one is judged without the ranks that have never been seen."""
MOST_STEPS: Final = 4096
"""A step this far behind the newest one is judged without the ranks that have not come to it."""
CAP_BYTES: Final = 4 * 1024 * 1024
"""What waits beyond this is judged as it is, the oldest first."""
NOBODY: Final = 2**62
"""Beyond every step: there is no rank to wait for."""


class Reached:
    """How far each rank is, and how far all of them are, which is asked at each frame."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._gone: set[int] = set()
        self._lowest = NOBODY
        self._at_lowest = 0
        """How many of those that are waited for are no further."""

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def ranks(self) -> Set[int]:
        """All that have been there, also those that are gone."""
        return self._steps.keys()

    def reach(self, rank: int, step: int) -> None:
        """A rank is at a step, at least: going back counts for nothing."""
        before = self._steps.get(rank)
        if before is not None and step <= before:
            return
        self._steps[rank] = step
        if rank in self._gone:
            return
        self._at_lowest -= before == self._lowest
        if step < self._lowest:
            self._lowest, self._at_lowest = step, 0
        self._at_lowest += step == self._lowest

    def leave(self, rank: int) -> None:
        """A rank is waited for no more."""
        if rank in self._gone:
            return
        self._gone.add(rank)
        self._at_lowest -= self._steps.setdefault(rank, -1) == self._lowest

    def by_all(self) -> int:
        """Return the step that all have reached that are waited for; `NOBODY` where none is."""
        if self._at_lowest <= 0:
            steps = [step for rank, step in self._steps.items() if rank not in self._gone]
            self._lowest = min(steps, default=NOBODY)
            self._at_lowest = steps.count(self._lowest)
        return self._lowest


class Lineup(Generic[T]):
    """Steps that wait for the ranks that have not reached them.

    Args:
        expected: how many ranks there are to be; nothing is given out before they have all joined, unless
            patience or room is at an end.
        cap_bytes: room for what waits.
    """

    def __init__(self, expected: int, *, cap_bytes: int = CAP_BYTES) -> None:
        self._expected, self._cap_bytes = expected, cap_bytes
        self._reached = Reached()
        self._waiting: dict[int, dict[int, tuple[T, int]]] = {}
        self._times: dict[int, float] = {}
        self._bytes = 0
        self._newest_time = float("-inf")
        self._given = self._newest = -1

    @property
    def is_complete(self) -> bool:
        """Whether every rank that is to be there has been there."""
        return len(self._reached) >= self._expected

    def join(self, rank: int) -> None:
        """A rank is there; it has not said anything yet."""
        self._reached.reach(rank, -1)

    def leave(self, rank: int) -> None:
        """A rank is over: nobody waits for it any more."""
        if rank in self._reached.ranks:
            self._reached.leave(rank)

    def reach(self, rank: int, step: int, time: float) -> None:
        """A rank has come to a step."""
        self._reached.reach(rank, step)
        self._newest, self._newest_time = max(step, self._newest), max(time, self._newest_time)

    def add(self, rank: int, step: int, time: float, item: T, *, size_bytes: int = 256) -> None:
        """Keep what a rank says of a step; said again it replaces the first, and too late it is ignored."""
        self.reach(rank, step, time)
        if step <= self._given:
            return
        items = self._waiting.setdefault(step, {})
        self._bytes += size_bytes - (items[rank][1] if rank in items else 0)
        items[rank] = item, size_bytes
        self._times[step] = min(time, self._times.get(step, time))

    def take(self, *, everything: bool = False) -> Iterator[tuple[int, dict[int, T]]]:
        """Yield (step, rank -> item) of the steps that are complete, in order; ranks are in order, too.

        Args:
            everything: nothing more will come.
        """
        passed = self._reached.by_all()
        for step in sorted(self._waiting):
            is_awaited = not self.is_complete and self._newest_time - self._times[step] <= PATIENCE_S
            is_due = (step <= passed and not is_awaited) or step < self._newest - MOST_STEPS
            if not (is_due or everything or self._bytes > self._cap_bytes):
                return
            items = self._waiting.pop(step)
            del self._times[step]
            self._bytes -= sum(size for _, size in items.values())
            self._given = max(self._given, step)
            yield step, {rank: items[rank][0] for rank in sorted(items)}
