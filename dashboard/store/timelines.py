"""Numbers of timelines (the scalars of a rank, or a layout of it) and of the series in them.

Rows of data have these numbers in place of names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from .changes import PartChanges
from .limits import MAX_SERIES, RunLimits

SCALAR: Final = "scalar"
LAYER: Final = "layer"
PARAMETER: Final = "parameter"
MODULE: Final = "module"
HISTOGRAM: Final = "histogram"


class Numbers(Protocol):
    """Numbers that several processes give alike."""

    def of_timeline(self, run: str, rank: int, digest: bytes) -> int:
        """The number of the scalars of a rank (empty digest), or of a layout of it."""
        ...

    def of_series(self, timeline: int, kind: str, name: str) -> int:
        """The number of a series of a timeline."""
        ...


class Timelines:
    """Not thread-safe: the store's lock guards it."""

    def __init__(self, changes: PartChanges, limits: RunLimits, numbers: Numbers | None) -> None:
        """Make it without any.

        Args:
            changes: Takes the rows of those that are new.
            limits: Counts series by run.
            numbers: Gives timelines and series their numbers; None counts them.
        """
        self._changes = changes
        self._limits = limits
        self._given = numbers
        self._numbers: dict[tuple[str, int, bytes], int] = {}
        self._rank_of: dict[int, tuple[str, int]] = {}
        self._of_layouts: dict[tuple[str, int], list[int]] = {}
        self._series: dict[tuple[int, str, str], int] = {}
        self._names: dict[tuple[int, str], list[str]] = {}
        self._next_series = 0

    def add(self, run: str, rank: int, digest: bytes = b"") -> int:
        """Return the number of a timeline of the rank, made if needed.

        Args:
            run: Its name.
            rank: Of the run.
            digest: Of the layout; of the rank's scalars empty.
        """
        number = self._numbers.get((run, rank, digest))
        if number is None:
            if self._given is None:
                number = max(self._numbers.values(), default=-1) + 1
            else:
                number = self._given.of_timeline(run, rank, digest)
            self.keep(run, rank, digest, number)
            self._changes.now.timelines.append((number, run, rank, digest))
        return number

    def keep(self, run: str, rank: int, digest: bytes, number: int) -> None:
        """Take one that the database has."""
        if digest and (run, rank, digest) not in self._numbers:
            self._of_layouts.setdefault((run, rank), []).append(number)
        self._numbers[run, rank, digest] = number
        self._rank_of[number] = run, rank

    def of_layouts(self, run: str, rank: int) -> list[int]:
        """Return the timelines of all layouts of the rank, oldest first."""
        return list(self._of_layouts.get((run, rank), ()))

    def of_scalars(self, run: str, rank: int) -> int | None:
        """Return the rank's timeline of scalars; None if it has none."""
        return self._numbers.get((run, rank, b""))

    def of_run(self, run: str) -> list[int]:
        """Return the timelines of all ranks of a run."""
        return [number for (name, _, _), number in self._numbers.items() if name == run]

    def with_scalars(self, numbers: Collection[int]) -> dict[tuple[str, int], int]:
        """Return (run, rank) -> timeline, of those of the given numbers that are of scalars."""
        return {
            (run, rank): number
            for (run, rank, digest), number in self._numbers.items()
            if not digest and number in numbers
        }

    def names(self) -> dict[int, tuple[str, int, bool]]:
        """Return timeline -> its run, its rank, and whether it has scalars."""
        return {number: (run, rank, not digest) for (run, rank, digest), number in self._numbers.items()}

    def run_of(self, timeline: int) -> str:
        """Return the run that a timeline is of."""
        return self._rank_of[timeline][0]

    def rank_of(self, timeline: int) -> tuple[str, int] | None:
        """Return the run and the rank that a timeline is of; None where there is none of that number."""
        return self._rank_of.get(timeline)

    # -- series

    def add_series(self, timeline: int, kind: str, name: str) -> int | None:
        """Return the number of a series, made if needed; None, counted, where there is no room for it."""
        number = self._series.get((timeline, kind, name))
        if number is None:
            run = self.run_of(timeline)
            is_full = len(self._names.get((timeline, kind), ())) >= MAX_SERIES
            if is_full or not self._limits.has_room(run, "series"):
                too_many = f"more than {MAX_SERIES:,} series of a rank or layout"
                self._limits.leave_out(run, too_many if is_full else self._limits.reason("series"))
                return None
            given = self._given
            number = self._next_series if given is None else given.of_series(timeline, kind, name)
            self.keep_series(timeline, kind, name, number)
            self._changes.now.series.append((number, timeline, kind, name))
        return number

    def keep_series(self, timeline: int, kind: str, name: str, number: int) -> None:
        """Take one that the database has."""
        if (timeline, kind, name) in self._series:
            return
        self._series[timeline, kind, name] = number
        self._next_series = max(self._next_series, number + 1)
        if (owner := self._rank_of.get(timeline)) is not None:
            self._limits.add(owner[0], "series")
        self._names.setdefault((timeline, kind), []).append(name)

    def find_series(self, timeline: int, kind: str, name: str) -> int | None:
        """Return the number of a series; None if nothing of it was ever appended."""
        return self._series.get((timeline, kind, name))

    def series_names(self, timeline: int, kind: str) -> list[str]:
        """Return the sorted names of a timeline's series."""
        return sorted(self._names.get((timeline, kind), ()))

    def forget_run(self, run: str) -> None:
        """Drop those of a run; their numbers may be used again."""
        gone = set(self.of_run(run))
        self._of_layouts = {key: numbers for key, numbers in self._of_layouts.items() if key[0] != run}
        self._numbers = {key: number for key, number in self._numbers.items() if key[0] != run}
        self._series = {key: number for key, number in self._series.items() if key[0] not in gone}
        self._names = {key: names for key, names in self._names.items() if key[0] not in gone}
        for timeline in gone:
            self._rank_of.pop(timeline, None)
